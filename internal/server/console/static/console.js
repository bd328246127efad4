// Keeps a page of the console current. Pages are complete without it. Texts that came
// from elsewhere are set as textContent alone.

const page = document.body.dataset.page;
const $ = (selector, root = document) => root.querySelector(selector);
const heardWithin = 3500; // ms

let snap = null; // the last snapshot
let at = 0;      // when it came, by performance.now()
let nodes = new Map(); // those of the snapshot, by instance

// now is the node's time: that of the snapshot, and what has passed since.
const now = () => snap.self.now_unix_ms + (performance.now() - at);

// ---- texts

const seconds = (ms) => (Math.floor(Math.max(0, ms) / 100) / 10).toFixed(1) + "s";
const count = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en-US"));
const clockTime = (ms) => (ms ? new Date(ms).toISOString().slice(11, 23) : "–");
const dateTime = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 23) : "–");

function span(us) {
  const a = Math.abs(us);
  if (a < 1e3) return `${us}µs`;
  if (a < 1e7) return `${Number((us / 1e3).toFixed(a < 1e4 ? 2 : 1))}ms`;
  return `${(us / 1e6).toFixed(1)}s`;
}

const short = (us) => (Math.abs(us) < 1e7 ? `${(us / 1e3).toFixed(1)}ms` : `${(us / 1e6).toFixed(1)}s`);
const offset = (us, give) => `${us < 0 ? "" : "+"}${short(us)} ±${short(Math.ceil(give / 100) * 100)}`;

// ---- the document, changed only where it differs

function text(el, value) {
  value = String(value);
  if (el && el.textContent !== value) el.textContent = value;
}

function attr(el, name, value) {
  if (el.getAttribute(name) !== value) el.setAttribute(name, value);
}

const svgNS = "http://www.w3.org/2000/svg";

function svg(name, attrs, content) {
  const el = document.createElementNS(svgNS, name);
  for (const [k, v] of Object.entries(attrs || {})) el.setAttribute(k, v);
  if (content !== undefined) el.textContent = content;
  return el;
}

// named shows the name of a node, as a link to its own pages if it has any. The server
// makes these URLs; here only the scheme is checked again.
function named(cell, name, url) {
  if (!/^https?:\/\//.test(url)) {
    if (cell.firstElementChild) cell.replaceChildren();
    return text(cell, name);
  }
  let a = cell.firstElementChild;
  if (!a) {
    a = Object.assign(document.createElement("a"), { rel: "noreferrer" });
    cell.replaceChildren(a);
  }
  attr(a, "href", url);
  text(a, name);
}

// rows makes the body of a table show a list. cells is of {key, state, url, values}; a
// value is a text, whatever the form of its column.
function rows(table, cells, columns) {
  if (!table) return;
  const body = table.tBodies[0];
  const have = new Map();
  for (const tr of [...body.rows]) {
    if (tr.dataset.key === undefined) tr.remove();
    else have.set(tr.dataset.key, tr);
  }
  let after = null;
  for (const c of cells) {
    let tr = have.get(c.key);
    have.delete(c.key);
    if (!tr) {
      tr = document.createElement("tr");
      tr.dataset.key = c.key;
      columns.forEach((kind, i) => {
        const cell = document.createElement(i === 0 ? "th" : "td");
        if (i === 0) cell.scope = "row";
        if (kind.class) cell.className = kind.class;
        if (kind.tag) cell.append(Object.assign(document.createElement("span"), { className: "tag" }));
        if (kind.bar) {
          const bar = svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
          bar.append(svg("rect", { class: "fill", width: "0", height: "8" }));
          cell.append(bar);
        }
        tr.append(cell);
      });
    }
    label(tr, table);
    if (tr.dataset.state !== (c.state || "")) tr.dataset.state = c.state || "";
    columns.forEach((kind, i) => {
      const cell = tr.cells[i];
      const shown = kind.link ? c.url + " " + c.values[i] : c.values[i];
      if (cell.shown === shown) return;
      cell.shown = shown;
      if (kind.link) named(cell, c.values[i], c.url);
      else if (kind.bar) attr(cell.firstChild.firstChild, "width", c.values[i].toFixed(1));
      else text(kind.tag ? cell.firstChild : cell, c.values[i]);
    });
    const next = after ? after.nextSibling : body.firstChild;
    if (next !== tr) body.insertBefore(tr, next);
    after = tr;
  }
  for (const tr of have.values()) tr.remove();
  if (cells.length === 0) {
    const tr = body.insertRow();
    tr.className = "none";
    const cell = tr.insertCell();
    cell.colSpan = columns.length;
    cell.textContent = "none";
  }
}

// label gives the cells of a row the names of their columns: on a narrow screen each row is a
// card. A name that spans two columns is that of the first.
function label(tr, table) {
  if (tr.dataset.labeled !== undefined || !table.tHead || tr.className === "none") return;
  tr.dataset.labeled = "";
  const names = [...table.tHead.rows[0].cells].flatMap((th) => [th.textContent, ...Array(th.colSpan - 1).fill("")]);
  [...tr.cells].forEach((cell, i) => { cell.dataset.label = names[i] || ""; });
}

for (const table of document.querySelectorAll(".list")) {
  table.classList.add("stacked");
  for (const tr of table.tBodies[0].rows) label(tr, table);
}

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
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy" });
  button.setAttribute("aria-label", what);
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

// ---- the parts of the pages

const get = (path) => path.split(".").reduce((o, k) => (o === null || o === undefined ? o : o[k]), snap);

function bound() {
  for (const el of document.querySelectorAll("[data-bind]")) {
    const v = get(el.dataset.bind);
    text(el, el.dataset.as === "count" ? count(v) : v === undefined || v === null ? 0 : v);
  }
}

function summary(s) {
  const el = $("#summary");
  if (!el) return;
  const name = `summary ${s.level}`;
  if (el.className !== name) el.className = name;
  text($(".text", el), s.text);
  const help = $(".help", el);
  help.hidden = !s.page;
  if (s.page) attr(help, "href", help.dataset.base + s.page);
}

// holder is the node that holds a sid, if it is registered.
const holder = (r) => (r.state === "held" ? nodes.get(r.instance) : undefined);

// nameOf, urlOf and stateTag are what tables show of a node. A node does not link to itself.
const nameOf = (n) => n.name || n.instance;
const urlOf = (n) => (n && n.instance !== snap.self.instance && n.console_url) || "";
const stateTag = (n) => n.refusing || n.state;

// stateOf is the state of a sid by now: a window ends between two snapshots too.
function stateOf(r) {
  if (r.state === "held") {
    const n = holder(r);
    if (n && n.state === "refusing" && n.refusing !== "WINDOW_EXHAUSTED") return "refusing";
    return left(r) === 0 ? "exhausted" : "held";
  }
  return r.state === "waiting" && left(r) === 0 ? "free" : r.state;
}

function verdictOf(r, state) {
  if (state === "exhausted") return "WINDOW_EXHAUSTED";
  const n = holder(r);
  return n ? stateTag(n) : "";
}

function rateOf(r) {
  const n = holder(r);
  return n && n.report ? count(n.report.ids_per_second) : "–";
}

// left is what remains of a window by now. A node reports more than what was last read
// from etcd.
function left(r) {
  const n = holder(r);
  return Math.max(0, (n && n.sid === r.sid ? Math.max(n.ceil_unix_ms, r.ceil_unix_ms) : r.ceil_unix_ms) - now());
}

// counted is how many sids are in which state. A sid whose holder refuses is held too.
function counted() {
  const out = { held: 0, waiting: 0, quarantined: 0, reserved: 0, exhausted: 0 };
  for (const r of snap.sids) {
    const state = stateOf(r);
    if (r.state === "held") out.held++;
    if (state !== "held") out[state] = (out[state] || 0) + 1;
  }
  return out;
}

// clockOf is the clock of a node as the page shows it: from the cluster's time, or from
// this node's while that is not known.
function clockOf(n) {
  const k = snap.self.clock, c = n.clock, self = n.instance === snap.self.instance;
  return { node: n, self, measured: Boolean(c), fresh: c && c.fresh, false: c && c.falseticker, age: c && c.age_us, rtt: c && c.rtt_us,
    offset: c && c.offset_us - (k.known ? k.offset_us : 0), give: c && (self && k.known ? k.uncertainty_us : c.error_us) };
}

const sidColumns = [{ class: "n" }, { tag: true }, { link: true, class: "name" }, { class: "n" }, { class: "n left" }, { bar: true, class: "barcell" }, {}, { class: "n" }, { class: "note" }];
let longest = 1;
const many = 128; // sids, above which a page shows less and follows snapshots alone

function sids() {
  const table = $("#sids");
  if (!table) return;
  let list = snap.sids.map((r) => [r, stateOf(r)]);
  if (list.length > many) {
    list = [...list.filter((e) => e[1] !== "held"), ...list.filter((e) => e[1] === "held")].slice(0, many);
    text(table.caption, `${many} of ${snap.sids.length} sids that were used, first those that are not simply held`);
  }
  rows(table, list.map(([r, state]) => {
    const l = left(r);
    return { key: String(r.sid), state, url: urlOf(holder(r)), values: [r.sid, state, r.node, r.term, seconds(l), Math.min(100, (l * 100) / longest),
      verdictOf(r, state), rateOf(r), r.problem || (r.worker ? `worker of ${r.owner}` : "")] };
  }), sidColumns);
}

function standbys() {
  const waiting = snap.nodes.filter((n) => n.state === "standby");
  text($("#standby-count"), waiting.length);
  rows($("#standbys"), waiting.map((n) => ({ key: n.instance, state: n.state, url: urlOf(n), values: [nameOf(n), n.state, n.http_address, n.version] })), [{ link: true }, {}, {}, {}]);
}

function clocks() {
  const k = snap.self.clock;
  if (!k) return;
  text($("#majority"), k.known ? offset(k.offset_us, k.uncertainty_us) : "not known");
  text($("#limit"), span(k.limit_us));
  text($("#kernel"), !k.kernel.known ? "not known" : k.kernel.synchronized ? "synchronized" : "not synchronized");
  const age = performance.now() - at, list = snap.nodes.map(clockOf);
  rows($("#clocks"), list.map((c) => ({ key: c.node.instance, state: c.node.state, url: urlOf(c.node) && urlOf(c.node) + "clocks", values: [
    nameOf(c.node), stateTag(c.node), c.measured ? offset(c.offset, c.give) : "–",
    c.self ? "this node" : c.measured ? seconds(c.age / 1e3 + age) + " ago" : "never",
    c.self || !c.measured ? "–" : span(c.rtt), c.false ? dateTime(snap.false_since_unix_ms[c.node.instance]) : "–"] })),
  [{ link: true }, { tag: true }, { class: "n" }, { class: "n" }, { class: "n" }, {}]);
  intervals(k, list);
}

// intervals draws each clock as an interval on a scale that is linear below 1 ms and
// logarithmic above.
function intervals(k, list) {
  const figure = $("#intervals");
  const shown = list.filter((c) => c.measured).slice(0, 64);
  figure.hidden = shown.length === 0;
  const step = 24, width = Math.max(280, figure.clientWidth - 30), label = Math.min(150, width / 3), height = shown.length * step + 40;
  const wide = Math.max(k.limit_us * 2, ...shown.map((c) => Math.abs(c.offset) + c.give), 1e4);
  const half = (width - label - 30) / 2, middle = label + half;
  const x = (us) => middle + (Math.asinh(us / 1e3) / Math.asinh(wide / 1e3)) * half;
  const plot = svg("svg", { class: "intervals", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Offsets of all clocks; the table below has the numbers" });
  if (k.known) {
    const a = x(-k.uncertainty_us), b = x(k.uncertainty_us);
    plot.append(svg("rect", { class: "majority", x: a, y: 4, width: Math.max(2, b - a), height: height - 30 }));
  }
  let free = -Infinity;
  for (const us of [-36e8, -6e7, -1e7, -1e6, -1e5, -1e4, -1e3, 0, 1e3, 1e4, 1e5, 1e6, 1e7, 6e7, 36e8]) {
    if (Math.abs(us) > wide) continue;
    plot.append(svg("line", { class: us === 0 ? "zero" : "axis", x1: x(us), x2: x(us), y1: 4, y2: height - 26 }));
    if (us === 0 || (x(us) - free > 46 && Math.abs(x(us) - middle) > 40)) {
      plot.append(svg("text", { x: x(us), y: height - 8, "text-anchor": "middle" }, us === 0 ? "0" : `${us < 0 ? "−" : "+"}${Math.abs(us) < 1e6 ? Math.abs(us) / 1e3 + " ms" : Math.abs(us) / 1e6 + " s"}`));
      free = x(us);
    }
  }
  for (const us of [-k.limit_us, k.limit_us]) {
    if (k.limit_us) plot.append(svg("line", { class: "limit", x1: x(us), x2: x(us), y1: 4, y2: height - 26 }));
  }
  shown.forEach((c, i) => {
    const y = i * step + 18, g = svg("g", { class: c.node.refusing === "CLOCK_SKEW" || c.false ? "off" : c.fresh ? "" : "old" });
    g.append(svg("text", { class: "name", x: label - 10, y: y + 4, "text-anchor": "end" }, nameOf(c.node).slice(0, 20) + (c.self ? " (this)" : "")));
    g.append(svg("line", { class: "range", x1: x(c.offset - c.give), x2: x(c.offset + c.give), y1: y, y2: y }));
    g.append(svg("circle", { class: "dot", cx: x(c.offset), cy: y, r: 4 }));
    plot.append(g);
  });
  $(".plot", figure).replaceChildren(plot);
}

// ---- lines over time

const palette = ["#3b76e0", "#d1762a", "#2f9e5f", "#a04fd0", "#c2455f", "#2a9aa8", "#8a8f2d", "#7a6a5a"];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// latest makes a legend show the latest values until a pointer shows others.
const latest = (say) => (u, v, i, at) => ((v = at === null ? u.data[i].at(-1) : v) === null || v === undefined ? "–" : say(v));

function chart(figure, old, names, data, unit, y = {}) {
  const width = figure.clientWidth - 30;
  if (old && old.names === names.join("\n") && old.u.width === width) {
    old.u.setData(data);
    return old;
  }
  if (old) old.u.destroy();
  const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const u = new uPlot({
    width, height: 240, legend: { live: true }, cursor: { drag: { x: false, y: false } },
    scales: { x: { range: (_, min, max) => [Math.max(max - 900, Math.min(min, max - 120)), max] }, y },
    axes: [{ ...axis, space: 90, values: (_, list) => list.map((t) => new Date(t * 1000).toISOString().slice(11, 19)) }, { ...axis, size: 76, values: (_, list) => list.map((v) => v + unit) }],
    series: [{ label: "UTC", value: latest((t) => new Date(t * 1000).toISOString().slice(11, 19)) },
      ...names.map((name, i) => ({ label: name, stroke: palette[i % palette.length], width: 1.5, points: { show: false }, spanGaps: false, value: latest((v) => v.toFixed(1) + unit) }))],
  }, data, $(".plot", figure));
  return { u, names: names.join("\n") };
}

let lines = null;

async function drawLines() {
  const figure = $("#lines");
  if (!figure || !window.uPlot) return;
  const h = await json("history");
  if (!h || !h.times_unix_ms || h.times_unix_ms.length < 2) return;
  figure.hidden = false;
  lines = chart(figure, lines, h.lines.map((l) => l.name.slice(0, 30)), [h.times_unix_ms.map((t) => t / 1000), ...h.lines.map((l) => l.offsets_ms)], " ms");
}

// ---- the page of the node

function conditions() {
  if (page !== "node") return;
  const self = snap.self;
  text($("#left"), self.sid < 0 ? "–" : seconds(self.ceil_unix_ms - now()));
  rows($("#conditions"), (snap.conditions || []).map((c, i) => ({ key: String(i), state: c.ok ? "serving" : "refusing", values: [c.ok ? "yes" : "no", c.text] })), [{ tag: true }, {}]);
  rows($("#refused"), Object.keys(snap.self.refused).filter((k) => snap.self.refused[k]).sort().map((k) => ({ key: k, values: [k, count(snap.self.refused[k])] })), [{}, { class: "n" }]);
}

let course = null;
const points = [[], []];

// windows draws how much of the window was left since the page was opened.
function windows() {
  const figure = $("#windows");
  if (!figure || !window.uPlot) return;
  points[0].push(snap.self.now_unix_ms / 1000);
  points[1].push(snap.self.sid < 0 ? null : Math.max(0, snap.self.ceil_unix_ms - snap.self.now_unix_ms) / 1000);
  if (points[0].length > 900) for (const p of points) p.shift();
  figure.hidden = false;
  course = chart(figure, course, ["window left"], points.map((p) => [...p]), " s", { range: (_, min, max) => [0, Math.max(max, 1)] });
}

// ---- Break it

let broken = null;

function showBroken() {
  if (!broken) return;
  $("#counter").dataset.bad = String(broken.duplicates);
  for (const el of document.querySelectorAll("[data-broken]")) {
    const v = broken[el.dataset.broken];
    text(el, typeof v === "number" ? count(v) : v);
  }
  $(".card.etcd").dataset.process = broken.etcd;
  for (const n of broken.nodes) {
    const card = [...document.querySelectorAll(".card[data-node]")].find((c) => c.dataset.node === n.name);
    if (!card) continue;
    card.dataset.answer = n.answer;
    card.dataset.process = n.state;
    for (const el of card.querySelectorAll("[data-field]")) {
      const v = n[el.dataset.field];
      text(el, typeof v === "number" ? count(v) : v);
    }
  }
}

async function act(form, action) {
  const problem = $("#problem");
  problem.hidden = true;
  const buttons = form.querySelectorAll("button");
  for (const b of buttons) b.disabled = true;
  try {
    const res = await fetch("/console/break", { method: "POST", headers: { Accept: "application/json" },
      body: new URLSearchParams({ target: form.elements.target.value, action }) });
    const answer = await res.json();
    if (res.ok) broken = answer;
    else {
      problem.textContent = answer.error;
      problem.hidden = false;
    }
  } catch {
    problem.textContent = "no answer";
    problem.hidden = false;
  }
  for (const b of buttons) b.disabled = false;
  showBroken();
}

if (page === "break") {
  document.addEventListener("submit", (e) => {
    if (!e.submitter || e.submitter.name !== "action") return;
    e.preventDefault();
    act(e.target, e.submitter.value);
  });
  const poll = async () => {
    const b = await json("break/state");
    if (b && b.nodes) {
      broken = b;
      showBroken();
    }
    setTimeout(poll, 500);
  };
  poll();
}

// ---- the loop

async function json(name) {
  try {
    const res = await fetch("/console/" + name, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(3000) });
    return res.ok ? await res.json() : null;
  } catch {
    return null;
  }
}

function take(s) {
  snap = s;
  nodes = new Map(snap.nodes.map((n) => [n.instance, n]));
  at = performance.now();
  snap.counts = counted();
  ended = exhausted();
  for (const r of snap.sids) longest = Math.max(longest, left(r));
  summary(snap.summary);
  bound();
  sids();
  tick();
  standbys();
  conditions();
  windows();
  document.dispatchEvent(new Event("snapshot"));
}

const exhausted = () => snap.sids.filter((r) => stateOf(r) === "exhausted").length;
let ended = 0; // windows that had, when the sentence on top was made

// tick brings what changes with time up to date. The sentence on top is the server's: it
// is asked for anew when a bar is empty, and not only with the next snapshot.
function tick() {
  if (snap) {
    if (exhausted() > ended) {
      ended = exhausted();
      json("snapshot").then((s) => s && s.self.now_unix_ms >= snap.self.now_unix_ms && take(s));
    }
    if (snap.sids.length <= many) {
      sids();
    }
    if (page === "clocks") clocks();
    if (page === "node") text($("#left"), snap.self.sid < 0 ? "–" : seconds(snap.self.ceil_unix_ms - now()));
    document.dispatchEvent(new Event("tick"));
    text($("#read"), snap.read_unix_ms ? seconds(now() - snap.read_unix_ms) + " ago" : "never");
  }
  const age = snap ? performance.now() - at : performance.now();
  const stale = age > heardWithin;
  document.body.classList.toggle("stale", stale);
  const live = $("#live");
  live.className = "live " + (stale ? "off" : "on");
  text(live, stale ? "stale" : "live");
  text($("#age"), stale ? `no answer for ${Math.floor(age / 1000)} s` : "");
}

// ---- events

const maxRows = 1000;
let filter = "";

function matches(tr) {
  return tr.textContent.toLowerCase().includes(filter);
}

function happened(e, id) {
  const body = $("#events").tBodies[0];
  if (!$("#follow").checked || [...body.rows].slice(0, 50).some((tr) => tr.dataset.key === id)) return;
  const tr = body.insertRow(0);
  tr.dataset.key = id;
  tr.dataset.kind = e.kind;
  const time = document.createElement("th");
  time.scope = "row";
  time.className = "time";
  time.textContent = dateTime(e.at_unix_ms);
  tr.append(time);
  const kind = tr.insertCell();
  kind.append(Object.assign(document.createElement("span"), { className: "tag", textContent: e.kind }));
  for (const v of [e.node, e.sid < 0 ? "–" : e.sid, e.message]) tr.insertCell().textContent = v;
  tr.cells[2].className = "name";
  tr.cells[3].className = "n";
  label(tr, $("#events"));
  tr.hidden = !matches(tr);
  while (body.rows.length > maxRows) body.deleteRow(-1);
}

if (page === "events") {
  $("#filter").addEventListener("input", (e) => {
    filter = e.target.value.trim().toLowerCase();
    for (const tr of $("#events").tBodies[0].rows) tr.hidden = !matches(tr);
  });
  $(".filter").addEventListener("submit", (e) => e.preventDefault());
}

// ---- the stream

let source = null, heard = performance.now(), lastID = "";

// follow opens the stream of snapshots and events. The browser opens it again by itself
// after an error; watch does if it hangs.
function follow() {
  if (source) source.close();
  const rest = lastID ? "?after=" + encodeURIComponent(lastID) : page === "events" ? "" : "?new=1";
  source = new EventSource("/console/feed" + rest);
  const on = (kind, f) => source.addEventListener(kind, (e) => {
    heard = performance.now();
    f(JSON.parse(e.data), e.lastEventId);
  });
  on("heartbeat", () => {});
  on("snapshot", take);
  on("event", (e, id) => {
    lastID = id;
    if (page === "events") happened(e, id);
  });
  on("missed", (m) => {
    if (page === "events") text($("#missed"), m.count < 0 ? "Some events were missed." : `${m.count} events were missed.`);
  });
}

function watch() {
  if (performance.now() - heard > heardWithin + 1000) {
    heard = performance.now();
    follow();
  }
}

async function first() {
  const s = await json("snapshot");
  if (s && s.summary && !snap) {
    heard = performance.now();
    take(s);
  }
}

$("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

if (page !== "login" && page !== "error") {
  first();
  follow();
  setInterval(tick, 250);
  setInterval(watch, 1000);
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (e) => { if (e.persisted) follow(); });
  if (page === "clocks") {
    drawLines();
    setInterval(drawLines, 2000);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const c of [lines, course]) if (c) c.u.destroy();
    lines = course = null;
  });
}

// What other modules of pages use. A document gets the event "snapshot" with each snapshot, and
// "tick" four times a second.
export { $, attr, clockOf, count, css, dateTime, json, latest, left, longest, many, nameOf, now, offset, palette, rows, seconds, snap, stateOf, stateTag, svg, text, urlOf };
