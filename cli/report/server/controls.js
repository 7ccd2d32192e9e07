
// The controls of `perfmodel ui`: they ask the server, and hand its documents to the page.
{
  const about = JSON.parse(document.getElementById("ask-about").textContent);
  const form = document.getElementById("ask");
  const grid = document.getElementById("ask-grid");
  const status = document.getElementById("ask-status");
  const me = Math.random().toString(36).slice(2);
  const GB = 1e9;
  const SETTLED = 700; // ms without a change, until pictures of pipelines are asked for
  const PATIENCE = 600; // ms, until a newer question gives up one that is being answered
  const wanted = { ...about.defaults };

  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children);
    return node;
  };

  // ---------------------------------------------------------------- fields

  // name, title, of which kind ("" for both), form, and what the form needs
  const FIELDS = [
    { name: "model", title: "Model", form: "search", width: "whole" },
    { name: "hardware", title: "Hardware", form: "list", width: "whole" },
    { name: "framework", title: "Software", form: "choice", kind: "training" },
    { name: "engine", title: "Engine", form: "choice", kind: "serving" },
    { name: "precision", title: "Precision", form: "list", kind: "training" },
    { name: "served_precision", title: "Precision of weights and products", form: "choice", kind: "serving" },
    { name: "devices", title: "Devices", form: "number", steps: [1, 65536], width: "third" },
    { name: "sequence_length", title: "Sequence length [tokens]", form: "number", steps: [512, 1048576], kind: "training", width: "third" },
    { name: "global_batch_size", title: "Global batch [sequences]", form: "number", steps: [1, 65536], kind: "training", width: "third" },
    { name: "input_length", title: "Prompt [tokens]", form: "number", steps: [32, 131072], kind: "serving", width: "third" },
    { name: "output_length", title: "Answer [tokens]", form: "number", steps: [16, 32768], kind: "serving", width: "third" },
    { name: "concurrency", title: "Requests under way, up to", form: "number", steps: [1, 8192], kind: "serving", width: "third" },
    { name: "memory", title: "Memory of a device at most [GB]", form: "memory", width: "third" },
    { name: "where", title: "Only where", form: "text", width: "third", hint: { training: "such as tp <= 8 and recompute == \"none\"", serving: "such as ttft_p95 < 2" } },
  ];

  function numberField(field) {
    const [low, high] = field.steps.map(Math.log2);
    const range = el("input", { type: "range", min: low, max: high, step: 1, "aria-label": `${field.title}, in powers of two` });
    const number = el("input", { type: "number", min: 1, step: 1, id: `ask-${field.name}`, inputmode: "numeric", "aria-describedby": `error-${field.name}` });
    const tell = (value) => range.setAttribute("aria-valuetext", Number(value).toLocaleString("en"));
    range.addEventListener("input", () => {
      number.value = 2 ** Number(range.value);
      tell(number.value);
      set(field.name, Number(number.value));
    });
    number.addEventListener("input", () => {
      const value = number.value === "" ? "" : Number(number.value);
      if (value >= 1) range.value = Math.log2(value);
      tell(number.value);
      set(field.name, value);
    });
    return {
      node: el("div", { class: "ask-number" }, range, number),
      input: number,
      show: (value) => {
        number.value = value;
        range.value = Math.log2(Math.max(1, value));
        tell(value);
      },
    };
  }

  function memoryField(field) {
    const range = el("input", { type: "range", min: 8, max: 300, step: 1, "aria-label": `${field.title}; the right end is no limit` });
    const number = el("input", { type: "number", min: 0, step: "any", id: `ask-${field.name}`, placeholder: "no limit", "aria-describedby": `error-${field.name}` });
    range.addEventListener("input", () => {
      const end = Number(range.value) >= Number(range.max);
      number.value = end ? "" : range.value;
      set(field.name, end ? null : Number(range.value) * GB);
    });
    number.addEventListener("input", () => {
      const value = number.value === "" ? null : Number(number.value);
      range.value = value ?? range.max;
      set(field.name, value === null ? null : value * GB);
    });
    return {
      node: el("div", { class: "ask-number" }, range, number),
      input: number,
      show: (value) => {
        number.value = value === null ? "" : value / GB;
        range.value = value === null ? range.max : value / GB;
      },
    };
  }

  function choiceField(field) {
    const select = el("select", { id: `ask-${field.name}`, "aria-describedby": `error-${field.name}`, onchange: () => set(field.name, select.value) });
    for (const it of about.choices[field.name]) select.append(el("option", { value: it }, it));
    return { node: select, input: select, show: (value) => (select.value = value) };
  }

  function searchField(field) {
    const names = about.choices[field.name];
    const input = el("input", { type: "text", id: `ask-${field.name}`, list: `list-${field.name}`, spellcheck: "false", "aria-describedby": `error-${field.name}` });
    // What is being typed is asked for once it is a name; on leaving, whatever it is.
    input.addEventListener("input", () => names.includes(input.value) && set(field.name, input.value));
    input.addEventListener("change", () => set(field.name, input.value.trim()));
    input.addEventListener("focus", () => input.select());
    const list = el("datalist", { id: `list-${field.name}` }, ...names.map((it) => el("option", { value: it })));
    return { node: el("div", {}, input, list), input, show: (value) => (input.value = value) };
  }

  function textField(field) {
    const input = el("input", { type: "text", id: `ask-${field.name}`, spellcheck: "false", "aria-describedby": `error-${field.name}`, oninput: () => set(field.name, input.value) });
    return { node: input, input, show: (value) => (input.value = value), hint: () => (input.placeholder = field.hint[wanted.kind]) };
  }

  function listField(field) {
    const summary = el("summary", { id: `ask-${field.name}`, "aria-describedby": `error-${field.name}` });
    const boxes = about.choices[field.name].map((it) => el("input", { type: "checkbox", value: it, onchange: change }));
    const items = el("div", { class: "ask-items", role: "group", "aria-label": field.title }, ...boxes.map((box) => el("label", {}, box, box.value)));
    const details = el("details", { class: "ask-list", "aria-label": field.title }, summary, items);
    const shown = (values) => {
      summary.textContent = values.join(", ") || "none";
      summary.setAttribute("aria-label", `${field.title}: ${summary.textContent}`);
    };
    function change() {
      const values = boxes.filter((box) => box.checked).map((box) => box.value);
      shown(values);
      set(field.name, values);
    }
    return {
      node: details,
      input: summary,
      show: (values) => {
        boxes.forEach((box) => (box.checked = values.includes(box.value)));
        shown(values);
      },
      mark: (wrong) => details.classList.toggle("invalid", wrong),
    };
  }

  const FORMS = { number: numberField, memory: memoryField, choice: choiceField, search: searchField, text: textField, list: listField };
  const fields = new Map();
  for (const field of FIELDS) {
    const made = { field, ...FORMS[field.form](field) };
    const error = el("p", { class: "ask-error", id: `error-${field.name}`, role: "alert", hidden: true });
    const title = field.form === "list" ? el("span", { class: "ask-label" }, field.title) : el("label", { for: `ask-${field.name}` }, field.title);
    made.box = el("div", { class: `ask-field ${field.width || ""}` }, title, made.node, error);
    made.error = error;
    grid.append(made.box);
    fields.set(field.name, made);
  }
  for (const name of about.software) document.getElementById("launch-software").append(el("option", { value: name }, name));

  function showAll() {
    for (const input of form.elements.kind) input.checked = input.value === wanted.kind;
    for (const [name, made] of fields) {
      made.box.hidden = Boolean(made.field.kind) && made.field.kind !== wanted.kind;
      made.show(wanted[name]);
      made.hint?.();
    }
    document.getElementById("launch-software").parentElement.hidden = wanted.kind === "serving";
  }

  // A press elsewhere closes an open list; Escape does, and gives the focus back.
  const open = () => [...form.querySelectorAll("details[open]")];
  addEventListener("pointerdown", (event) => open().forEach((it) => it.contains(event.target) || (it.open = false)));
  form.addEventListener("keydown", (event) => {
    const [first] = event.key === "Escape" ? open() : [];
    if (!first) return;
    first.open = false;
    first.querySelector("summary").focus();
  });

  // ---------------------------------------------------------------- what the address holds

  // Other users of the machine reach the port as well: requests carry the token of the printed link.
  const token = new URLSearchParams(location.search).get("token") || "";
  const request = (path, how = {}) => fetch(path, { ...how, headers: { ...how.headers, "x-perfmodel-token": token } });

  function readAddress() {
    for (const [name, text] of new URLSearchParams(location.search)) {
      const usual = about.defaults[name];
      if (usual === undefined) continue;
      if (Array.isArray(usual)) wanted[name] = text.split(",").filter(Boolean);
      else if (typeof usual === "number" || name === "memory") wanted[name] = Number(text);
      else wanted[name] = text;
    }
  }

  function writeAddress() {
    const said = new URLSearchParams();
    for (const [name, usual] of Object.entries(about.defaults)) {
      const field = fields.get(name)?.field;
      if (field?.kind && field.kind !== wanted.kind) continue;
      if (wanted[name] !== null && JSON.stringify(wanted[name]) !== JSON.stringify(usual)) said.set(name, String(wanted[name]));
    }
    said.set("token", token);
    const text = said.toString().replaceAll("%2C", ",");
    history.replaceState(null, "", `${location.pathname}?${text}${location.hash}`);
  }

  // ---------------------------------------------------------------- asking

  const asking = { now: null, next: false, settled: 0, polls: 0 };

  function set(name, value) {
    wanted[name] = value;
    if (name === "kind") showAll();
    writeAddress();
    ask();
  }

  function ask() {
    clearTimeout(asking.settled);
    if (!asking.now) {
      send(false);
      return;
    }
    asking.next = true;
    const waited = performance.now() - asking.now.since;
    if (asking.now.pictures || waited > PATIENCE) asking.now.stop.abort();
  }

  async function send(pictures) {
    const now = { stop: new AbortController(), since: performance.now(), pictures };
    asking.now = now;
    asking.next = false;
    const tick = setInterval(poll, 400);
    try {
      const reply = await request("api/results", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ page: me, question: wanted, pictures }),
        signal: now.stop.signal,
      });
      const found = await reply.json();
      if (reply.status === 409) return;
      if (!reply.ok) {
        wrong(found);
        return;
      }
      right();
      const answered = performance.now();
      await show(found.document, pictures);
      const answer = `${found.count.toLocaleString("en")} ${wanted.kind === "serving" ? "operating points" : "strategies"} in ${Math.round(answered - now.since).toLocaleString("en")} ms`;
      if (!pictures) tell(answer, false);
      document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered || 0) + 1);
      if (!asking.next && !pictures && wanted.kind === "training") asking.settled = setTimeout(() => asking.now || send(true), SETTLED);
    } catch (error) {
      if (error.name !== "AbortError") {
        tell("the server does not answer; is 'perfmodel ui' still running?", false);
        document.documentElement.classList.add("stale");
      }
    } finally {
      clearInterval(tick);
      asking.now = null;
      if (asking.next) send(false);
    }
  }

  async function show(found, again) {
    const first = !perfmodel.current();
    const kept = first ? null : perfmodel.state();
    const same = kept && again;
    const { scrollX, scrollY } = globalThis;
    await perfmodel.load(found);
    if (kept && !same) delete kept.row; // rows are others now
    if (kept) perfmodel.restore(kept);
    scrollTo(scrollX, scrollY);
  }

  async function poll() {
    const { now } = asking;
    if (!now || performance.now() - now.since < 500 || now.pictures) return;
    try {
      const { doing, seconds } = await (await request("api/status")).json();
      const why = doing === "projecting" && seconds > 4 ? " (kernels of a new kind are compiled once)" : "";
      if (asking.now === now && doing) tell(`${doing}… ${seconds.toFixed(0)} s${why}`, true);
    } catch {
      // send() says so
    }
  }

  function tell(text, busy) {
    status.textContent = text;
    status.classList.toggle("busy", busy);
  }

  function wrong({ control, error }) {
    right();
    const made = fields.get(control);
    const place = made && !made.box.hidden ? made.error : document.getElementById("error-");
    place.textContent = error;
    place.hidden = false;
    made?.input.setAttribute("aria-invalid", "true");
    made?.mark?.(true);
    tell("", false);
    document.documentElement.classList.add("stale");
    const page = document.querySelector("#page > .waiting");
    if (page) page.textContent = "Nothing to show yet.";
  }

  function right() {
    document.documentElement.classList.remove("stale");
    document.getElementById("error-").hidden = true;
    for (const made of fields.values()) {
      made.error.hidden = true;
      made.input.removeAttribute("aria-invalid");
      made.mark?.(false);
    }
  }

  // ---------------------------------------------------------------- saving

  async function save(what, more = {}) {
    const query = new URLSearchParams({ q: JSON.stringify(wanted), ...more });
    open().forEach((it) => (it.open = false));
    tell("writing…", true);
    try {
      const reply = await request(`download/${what}?${query}`);
      if (!reply.ok) {
        wrong(await reply.json());
        return;
      }
      const name = /filename="([^"]+)"/.exec(reply.headers.get("content-disposition"))[1];
      const link = el("a", { href: URL.createObjectURL(await reply.blob()), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      tell(`saved ${name}`, false);
    } catch {
      tell("the server does not answer; is 'perfmodel ui' still running?", false);
    }
  }

  document.getElementById("save-dataset").addEventListener("click", () => save("results.nc"));
  document.getElementById("save-report").addEventListener("click", () => save("report.html"));
  document.getElementById("save-launch").addEventListener("click", () => {
    const row = perfmodel.current()?.row;
    if (row === null || row === undefined) tell("choose a row first", false);
    else save("launch", { row: String(row), for: document.getElementById("launch-software").value });
  });
  document.getElementById("copy-link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      tell("link copied", false);
    } catch {
      tell("the link is in the address line", false);
    }
  });

  form.addEventListener("submit", (event) => event.preventDefault());
  for (const input of form.elements.kind) input.addEventListener("change", () => set("kind", input.value));
  globalThis.perfmodelAsk = { wanted, set };
  document.querySelector("#page > .waiting").textContent = "Projecting…";
  readAddress();
  showAll();
  ask();
}
