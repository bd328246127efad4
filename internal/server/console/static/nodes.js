// The page of the nodes: the cluster, its sids as a bar and as a grid, and its last hour as
// lines. The page of the pool has the bar and the grid too.

import { $, attr, clockOf, count, css, json, latest, left, longest, many, nameOf, now, offset, palette, rows, seconds, snap, stateOf, stateTag, svg, text, urlOf } from "./console.js";

// ---- texts, as the server writes them

const workSeconds = 5; // The counts of a report are of this time.

function refusals(counts) {
  const list = Object.entries(counts || {}).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return list.map(([reason, n]) => `${reason} ${(n / workSeconds).toFixed(1)}/s`).join(", ") || "none";
}

function latency(us) {
  if (!us) return "–";
  if (us < 1e3) return `${us} µs`;
  if (us < 1e5) return `${(Math.round(us / 100) / 10).toFixed(1)} ms`;
  return us < 1e6 ? `${Math.floor(us / 1e3)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

// span writes a time in ms as people say it; "–" for less than 1.
function span(ms) {
  const s = Math.floor(ms / 1e3), minutes = Math.floor(s / 60) % 60, hours = Math.floor(s / 3600);
  if (ms < 1) return "–";
  if (hours >= 2 * 365 * 24) return `${Math.floor(hours / 365 / 24)} years`;
  if (hours >= 48) return `${Math.floor(hours / 24)} days`;
  return (hours ? `${hours}h` : "") + (hours || minutes ? `${minutes}m` : "") + `${s % 60}s`;
}

// ---- the cluster, and a row for each node

const columns = [{ link: true }, { tag: true }, {}, { class: "n" }, { class: "spark" }, { class: "note" }, { class: "n left" }, { class: "n" }, {}, {}];

function cluster() {
  const table = $("#nodes");
  if (!table) return;
  const work = snap.self.work, etcd = snap.etcd;
  text($("#rate"), count(snap.total.ids_per_second));
  text($("#refusals"), refusals(snap.total.work.refused));
  text($("#latency"), `${latency(snap.total.work.p50_us)} · ${latency(snap.total.work.p99_us)}`);
  text($("#members"), etcd ? `${etcd.answer} of ${etcd.endpoints}` : "–");
  text($("#leader"), (etcd && etcd.leader) || "–");
  $("#etcd").hidden = !etcd?.members?.length;
  if (etcd?.members) {
    const mib = (m) => `${(m.database_bytes / 1048576).toFixed(1)} MiB${m.quota_bytes ? `, ${Math.floor(m.database_bytes * 100 / m.quota_bytes)} %` : ""}`;
    rows($("#etcd"), etcd.members.map((m) => ({ key: m.endpoint, values: [m.endpoint, m.problem || (m.leads ? "leader" : m.learner ? "learner" : "follower"),
      String(m.lag), mib(m), m.sync_p99_us ? latency(m.sync_p99_us) : "–"] })), [{}, {}, { class: "n" }, { class: "n" }, { class: "n" }]);
  }
  text($("#write"), latency(work.etcd_write_us));
  const serves = (n) => (n.state === "serving" ? 1 : 0);
  let list = [...snap.gone, ...snap.nodes].sort((a, b) => serves(a) - serves(b));
  if (list.length > many) {
    text(table.caption, `${many} of ${list.length} nodes, first those that do not serve`);
    list = list.slice(0, many);
  }
  rows(table, list.map((n) => {
    const c = clockOf(n), r = n.report;
    return { key: n.instance, state: n.state, url: urlOf(n), values: [nameOf(n), stateTag(n), span(snap.self.now_unix_ms - snap.since_unix_ms[n.instance]),
      r ? count(r.ids_per_second) : "–", "", r ? refusals(r.work.refused) : "–", remaining(n), c.measured ? offset(c.offset, c.give) : "–", n.version,
      n.started_unix_ms ? span(snap.self.now_unix_ms - n.started_unix_ms) : "–"] };
  }), columns);
  sparks();
}

const remaining = (n) => (n.sid >= 0 && n.ceil_unix_ms ? seconds(n.ceil_unix_ms - now()) : "–");

// passing brings what changes between two snapshots up to date.
function passing() {
  const table = $("#nodes");
  if (!table) return;
  const at = snap.self.work.etcd_written_unix_ms;
  text($("#written"), at ? seconds(now() - at) + " ago" : "never");
  if (snap.nodes.length > many) return;
  const byKey = new Map([...table.tBodies[0].rows].map((tr) => [tr.dataset.key, tr]));
  for (const n of [...snap.gone, ...snap.nodes]) {
    const tr = byKey.get(n.instance);
    if (tr) text(tr.cells[6], remaining(n));
  }
}

// ---- sids

function bar() {
  const el = $("#sidbar"), parts = snap.sid_parts, key = JSON.stringify(parts);
  if (!el || el.key === key) return;
  el.key = key;
  attr(el, "viewBox", `0 0 ${snap.pool_size} 8`);
  el.replaceChildren(...parts.map((p) => svg("rect", { "data-state": p.state, x: p.at, width: p.count, height: 8 })));
  $("#sidparts").replaceChildren(...parts.map((p) => {
    const span = Object.assign(document.createElement("span"), { textContent: p.text });
    span.dataset.state = p.state;
    return span;
  }));
}

// range reads "first-last", both included.
function range(s) {
  const [first, last] = (s || "").split("-").map(Number);
  return s ? [first, last === undefined ? first : last] : [0, -1];
}

// grid shows each sid of the pool once somebody opens it.
function grid() {
  const el = $("#grid"), [first, last] = range(snap.pool_sids);
  if (!el || last < first) return;
  const details = $("#sidgrid"), size = last - first + 1;
  details.hidden = false;
  if (!details.open) return;
  if (el.children.length !== size) {
    el.classList.toggle("dense", size > many);
    el.replaceChildren(...Array.from({ length: size }, (_, i) => {
      const cell = document.createElement("div");
      cell.className = "cell";
      cell.append(document.createElement("i"), document.createElement("b"), document.createElement("span"));
      cell.children[1].textContent = String(first + i);
      return cell;
    }));
  }
  const workers = range(snap.worker_sids), used = new Map(snap.sids.map((r) => [r.sid, r]));
  for (let sid = first; sid <= last; sid++) {
    const cell = el.children[sid - first], r = used.get(sid);
    let state = r ? stateOf(r) : "none";
    if ((state === "none" || state === "free") && sid >= workers[0] && sid <= workers[1]) state = "worker";
    if (cell.dataset.state !== state) cell.dataset.state = state;
    cell.classList.toggle("self", Boolean(r) && r.instance === snap.self.instance);
    const scale = `scaleY(${r ? Math.min(1, left(r) / longest).toFixed(3) : 0})`;
    if (cell.firstChild.style.transform !== scale) cell.firstChild.style.transform = scale;
    const holder = !r || state === "free" ? "" : r.node;
    if (size > many) attr(cell, "title", `sid ${sid}: ${state === "none" ? "free" : state}${holder ? ", " + holder : ""}`);
    else text(cell.children[2], state === "free" ? "free" : state === "worker" ? "worker" : holder);
  }
}

// ---- the past

let past = null, shownSpan = location.hash === "#1h" ? "1h" : "15m";
const charts = new Map();

// sparks draws the line of each row.
function sparks() {
  if (!past) return;
  const lines = new Map(past.nodes.map((l) => [l.instance, l.ids_per_second]));
  for (const tr of $("#nodes").tBodies[0].rows) {
    const values = lines.get(tr.dataset.key), cell = tr.cells[4];
    if (!values || cell.values === values) continue;
    cell.values = values;
    const top = Math.max(1, ...values.map((v) => v || 0)), parts = [[]];
    values.forEach((v, i) => {
      if (v === null) parts.push([]);
      else parts.at(-1).push(`${60 - values.length + i},${(18 - (v * 16) / top).toFixed(1)}`);
    });
    const el = svg("svg", { class: "sparkline", viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" });
    el.append(...parts.filter((p) => p.length > 1).map((p) => svg("polyline", { points: p.join(" ") })));
    cell.replaceChildren(el);
  }
}

const clock = (s) => new Date(s * 1000).toISOString().slice(11, 19);
const worse = /refusing|silent|failing|lost|shut|false|rewound|step|suspend|stall|standby|drained|left/;

// marks draws events across a chart.
function marks(u) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  for (const e of past.events) {
    const x = u.valToPos(e.at_unix_ms / 1000, "x", true);
    if (x < left || x > left + width) continue;
    u.ctx.fillStyle = css(worse.test(e.kind) ? "--bad-fill" : "--wait");
    u.ctx.globalAlpha = 0.55;
    u.ctx.fillRect(Math.round(x), top, devicePixelRatio, height);
  }
  u.ctx.restore();
}

// point says which event is near the pointer.
function point(u) {
  if (!past || u.cursor.left < 0) return;
  let best = null, distance = 6;
  for (const e of past.events) {
    const d = Math.abs(u.valToPos(e.at_unix_ms / 1000, "x") - u.cursor.left);
    if (d <= distance) [best, distance] = [e, d];
  }
  if (best) text($("#moment"), `${clock(best.at_unix_ms / 1000)} ${best.node}: ${best.kind}: ${best.message}`);
}

// draw makes the chart of a figure, or gives it new data.
function draw(name, labels, lists) {
  const plot = $(`[data-chart=${name}] .plot`), width = plot.clientWidth, old = charts.get(name);
  const data = [past.times_unix_ms.map((t) => t / 1000), ...lists], key = [width, shownSpan, ...labels].join("\n");
  if (old && old.key === key) return old.u.setData(data);
  if (old) old.u.destroy();
  const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const longest = shownSpan === "1h" ? 3600 : 900;
  const u = new uPlot({
    width, height: 150, legend: { live: true }, cursor: { drag: { x: false, y: false }, sync: { key: "past" } },
    scales: { x: { range: (_, min, max) => [Math.max(max - longest, Math.min(min, max - 120)), max] }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [{ ...axis, space: 80, values: (_, list) => list.map(clock) }, { ...axis, size: 64, values: (_, list) => list.map((v) => v.toLocaleString("en-US")) }],
    series: [{ label: "UTC", value: latest(clock) },
      ...labels.map((label, i) => ({ label, stroke: palette[i % palette.length], width: 1.5, points: { show: false }, value: latest((v) => v.toLocaleString("en-US")) }))],
    hooks: { draw: [marks], setCursor: [point] },
  }, data, plot);
  charts.set(name, { u, key });
}

const ms = (list) => list.map((v) => (v === null ? null : v / 1000));

function drawAll() {
  const section = $("#past");
  if (!section || !past || !window.uPlot || past.times_unix_ms.length < 2) return;
  section.hidden = false;
  for (const b of section.querySelectorAll("[data-span]")) attr(b, "aria-pressed", String(b.dataset.span === shownSpan));
  const reasons = Object.keys(past.refused_per_second).sort();
  draw("rate", ["IDs/s"], [past.ids_per_second]);
  draw("refused", reasons.length ? reasons : ["none"], reasons.length ? reasons.map((r) => past.refused_per_second[r]) : [past.times_unix_ms.map(() => 0)]);
  draw("latency", ["p50", "p99"], [ms(past.p50_us), ms(past.p99_us)]);
  draw("etcd", ["write"], [ms(past.etcd_write_us)]);
  sparks();
}

async function load() {
  if (document.hidden) return;
  const asked = shownSpan, answer = await json(`past?span=${asked}`);
  if (!answer || !answer.times_unix_ms || asked !== shownSpan) return;
  past = answer;
  drawAll();
}

// The node takes a sample each 5 s. The lines of many nodes are long, and asked for less often.
async function follow() {
  await load();
  setTimeout(follow, past && past.nodes.length > many ? 30000 : 5000);
}

// ----

function take() {
  if (!snap) return;
  bar();
  grid();
  cluster();
  passing();
}

document.addEventListener("snapshot", take);
document.addEventListener("tick", () => {
  passing();
  if (snap.sids.length <= many) grid();
});
$("#sidgrid")?.addEventListener("toggle", () => snap && grid());
take();

if ($("#past")) {
  follow();
  document.addEventListener("visibilitychange", load);
  addEventListener("resize", drawAll);
  $("#past").addEventListener("click", (e) => {
    if (!e.target.dataset.span) return;
    shownSpan = e.target.dataset.span;
    history.replaceState(null, "", shownSpan === "1h" ? "#1h" : location.pathname);
    load();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const c of charts.values()) c.u.destroy();
    charts.clear();
    drawAll();
  });
}
