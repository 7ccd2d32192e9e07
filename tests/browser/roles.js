// What a reader of the page by keyboard or by ear would miss.
() => {
  const named = (it) => it.getAttribute("aria-label") || it.textContent.trim() || it.title ||
    (it.id && document.querySelector(`label[for="${it.id}"]`)) || it.closest("label");
  const all = (selector) => [...document.querySelectorAll(selector)];
  const ids = all("[id]").map((it) => it.id);
  return {
    nameless: all("button, select, input, summary, [role=slider], [role=option], [role=tab], [role=region]").filter((it) => !named(it)).length,
    twice: ids.filter((it, at) => ids.indexOf(it) !== at),
    titles: all("h1").length,
    landmarks: ["main", "header", "footer"].map((it) => all(it).length > 0),
    tables: all("table").filter((it) => !it.caption && !it.closest("details") && it.className !== "plain").length,
    heads: all("table thead th").filter((it) => !it.scope && it.className !== "corner").length,
    hidden: all("canvas").filter((it) => it.getAttribute("aria-hidden") !== "true" && it.getAttribute("role") !== "img").length,
    behind: all(".panel").map((it) => it.querySelectorAll("section").length > 0),
    lang: document.documentElement.lang,
  };
}
