// Keeps a page of the console current. Pages are complete without it. The server sends the elements that
// changed, as it writes them in a new page; here they take the place of those with the same ID.

const page = document.body.dataset.page;
const $ = (selector, root = document) => root.querySelector(selector);
const heardWithin = 3500; // ms

// ---- the document, changed only where it differs

function text(el, value) {
  if (el && el.textContent !== String(value)) el.textContent = value;
}

// parsed returns the elements of a text of HTML. Nothing in it runs: the policy of the page forbids it, and so does the parser.
function parsed(html) {
  const body = new DOMParser().parseFromString(html, "text/html").body;
  for (const table of body.querySelectorAll(".list")) stack(table);
  return [...body.children];
}

// show puts elements where those with their IDs are.
function show(html) {
  const focus = document.activeElement;
  for (const el of parsed(html)) {
    const old = document.getElementById(el.id);
    if (old) morph(old, el);
  }
  if (document.activeElement !== focus && focus.isConnected) focus.focus({ preventScroll: true }); // Its row was moved.
}

// morph makes one element equal to another. What is equal stays as it is, with the focus, a selection, and what was opened.
function morph(old, now) {
  if (old.isEqualNode(now)) return;
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  const keyed = new Map([...old.children].filter((c) => c.dataset.key).map((c) => [c.dataset.key, c]));
  let at = old.firstChild;
  for (const child of [...now.childNodes]) {
    const key = child.dataset?.key;
    const same = key ? keyed.get(key) : at && !at.dataset?.key && at.nodeName === child.nodeName && at.id === child.id ? at : null;
    if (same !== at || !at) old.insertBefore(same ?? child, at);
    else at = at.nextSibling;
    if (!same) continue;
    if (same.nodeType === Node.ELEMENT_NODE) morph(same, child);
    else if (same.data !== child.data) same.data = child.data;
  }
  for (let next; at; at = next) {
    next = at.nextSibling;
    at.remove();
  }
}

// stack gives the cells of rows the names of their columns: on a narrow screen each row is a card. A name
// that spans two columns is that of the first.
function stack(table) {
  table.classList.add("stacked");
  const names = [...table.tHead.rows[0].cells].flatMap((th) => [th.textContent, ...Array(th.colSpan - 1).fill("")]);
  for (const tr of table.tBodies[0].rows) if (tr.className !== "none") [...tr.cells].forEach((cell, i) => { cell.dataset.label = names[i] || ""; });
}

for (const table of document.querySelectorAll(".list")) stack(table);

// ---- copying

// copied puts a text into the clipboard. Browsers offer that only to pages from this machine or
// over TLS; elsewhere a selection is copied.
async function copied(from) {
  if (navigator.clipboard) return navigator.clipboard.writeText(from.textContent.trim()).then(() => true, () => false);
  getSelection().selectAllChildren(from);
  const done = document.execCommand("copy");
  getSelection().removeAllRanges();
  return done;
}

// copier puts a button behind an ID or a command. It has no text, so that it is not copied too.
function copier(from, what) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", ariaLabel: what });
  button.addEventListener("click", async () => {
    const done = await copied(from);
    button.classList.toggle("done", done);
    text($("#said"), done ? "copied" : "not copied: the browser does not allow it");
    setTimeout(() => {
      button.classList.remove("done");
      text($("#said"), "");
    }, 2000);
  });
  return button;
}

for (const cell of document.querySelectorAll("td.code, th.code")) cell.append(copier(cell, `Copy ${cell.textContent}`));
for (const pre of document.querySelectorAll("pre")) {
  const box = Object.assign(document.createElement("div"), { className: "copied" });
  pre.replaceWith(box);
  box.append(pre, copier(pre, "Copy the commands"));
}

// ---- Break it

async function get(name, accept = "application/json") {
  try {
    const res = await fetch("/console/" + name, { headers: { Accept: accept }, signal: AbortSignal.timeout(3000) });
    return res.ok ? await (accept === "text/html" ? res.text() : res.json()) : null;
  } catch {
    return null;
  }
}

let acting = 0;

async function act(form, action) {
  const say = (words) => { text($("#problem"), words); $("#problem").hidden = !words; };
  say("");
  acting++;
  for (const b of form.querySelectorAll("button")) b.disabled = true;
  try {
    const res = await fetch("/console/break", { method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams({ target: form.elements.target.value, action }) });
    if (!res.ok) say((await res.json()).error);
  } catch {
    say("no answer");
  }
  for (const b of form.querySelectorAll("button")) b.disabled = false;
  acting--;
  await broken();
}

async function broken() {
  const html = await get("break/state", "text/html");
  if (html && !acting) show(html);
}

if (page === "break") {
  document.addEventListener("submit", (e) => {
    if (!e.submitter || e.submitter.name !== "action") return;
    e.preventDefault();
    act(e.target, e.submitter.value);
  });
  const poll = () => broken().then(() => setTimeout(poll, 500));
  poll();
}

// ---- events

const maxRows = 1000;
let filter = "";

const sift = (tr) => { tr.hidden = !tr.textContent.toLowerCase().includes(filter); };

function happened(html) {
  if (!$("#follow").checked) return;
  const body = $("#events").tBodies[0], tr = $("tr", parsed(html)[0]);
  body.prepend(tr);
  stack($("#events"));
  sift(tr);
  while (body.rows.length > maxRows) body.deleteRow(-1);
}

if (page === "events") {
  $("#filter").addEventListener("input", (e) => {
    filter = e.target.value.trim().toLowerCase();
    for (const tr of $("#events").tBodies[0].rows) sift(tr);
  });
  $(".filter").addEventListener("submit", (e) => e.preventDefault());
}

// ---- the stream

let source = null, heard = performance.now(), shown = heard, tried = 0, began = false, lastID = $("#events tbody tr")?.dataset.key ?? "";

// follow opens the stream of what changes. The browser opens it again by itself after an error; watch does if it hangs.
function follow() {
  if (source) source.close();
  tried = performance.now();
  const rest = lastID ? "&after=" + encodeURIComponent(lastID) : page === "events" ? "" : "&new=1";
  source = new EventSource(`/console/feed?page=${page}${$("#sidgrid")?.open ? "&grid=1" : ""}${rest}`);
  const on = (kind, f) => source.addEventListener(kind, (e) => {
    heard = performance.now();
    f(e);
  });
  on("heartbeat", () => {});
  on("show", (e) => {
    shown = heard;
    began = true;
    show(e.data);
    watch();
  });
  on("event", (e) => {
    lastID = e.lastEventId;
    happened(e.data);
  });
  on("missed", (e) => {
    const { count } = JSON.parse(e.data);
    if (page === "events") text($("#missed"), count < 0 ? "Some events were missed." : `${count} events were missed.`);
  });
}

// watch says whether the page is current.
function watch() {
  const now = performance.now(), age = now - shown, stale = !began || age > heardWithin, live = $("#live");
  if (Math.min(now - heard, now - tried) > heardWithin + 1000) follow();
  if (!began && age < heardWithin) return;
  document.body.classList.toggle("stale", stale);
  live.className = "live " + (stale ? "off" : "on");
  text(live, stale ? "stale" : "live");
  text($("#age"), stale ? `no answer for ${Math.floor(age / 1000)} s` : "");
}

$("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

if ($("nav [aria-current]")) {
  document.documentElement.classList.add("follows");
  follow();
  setInterval(watch, 500);
  $("#sidgrid")?.addEventListener("toggle", follow);
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (e) => { if (e.persisted) follow(); });
}

export { $, get, show, text };
