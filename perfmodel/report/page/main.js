export async function load(found) { document.title = found.title; }
globalThis.perfmodel = { load };
const embedded = document.getElementById("document").textContent;
if (embedded) load(JSON.parse(embedded));
