// The page of the timeline: who held which sid in the last hour, drawn by timeline.js.

import { $, get, show as put, text } from "./console.js";

const hour = 3600e3, least = 60e3, shownRows = 64;
const quiet = /^(silent|standby|unknown)$/;

let known = null, soon; // what the node said last
const asked = new URLSearchParams(location.search);
const askedAt = Date.parse(asked.get("at")), askedSpan = Number(asked.get("span")) * 1e3;
let width = Math.min(hour, Math.max(least, askedSpan || 900e3)); // ms that are shown
let middle = Number.isNaN(askedAt) ? null : askedAt; // null: it follows
let bySID = asked.get("by") === "sid"; // what a row is; else a node

Timeline.time = (ms) => new Date(ms).toISOString().slice(11, 21);
const timeline = new Timeline($("#timeline"), (from, to) => show((from + to) / 2, to - from), (words) => text($("#moment"), words));

const range = () => {
  if (middle !== null) return { from: middle - width / 2, to: middle + width / 2 };
  const latest = known.latest_unix_ms, past = Math.max(least * 0.9, Math.min(width * 0.9, latest - known.first_unix_ms));
  return { from: latest - past, to: latest + past / 9 };
};

// show brings another range to the page and to its address; at null follows the latest.
function show(at, span) {
  width = Math.min(hour, Math.max(least, span));
  middle = at === null ? null : Math.round(Math.min(known.latest_unix_ms, Math.max(known.latest_unix_ms - hour, at)));
  const query = [middle !== null && `at=${new Date(middle).toISOString()}&span=${Math.round(width / 1e3)}`, bySID && "by=sid"].filter(Boolean).join("&");
  history.replaceState(null, "", location.pathname + (query && `?${query}`));
  draw();
  clearTimeout(soon);
  soon = setTimeout(load, 200); // for the rows of the table
}

// rowsOf makes rows of stretches, of nodes or of sids: those of one tenure are one bar.
function rowsOf({ stretches, events, latest_unix_ms: latest }) {
  const byName = new Map();
  for (const s of stretches) {
    if (bySID && s.sid < 0) continue;
    const name = bySID ? `sid ${s.sid}` : s.node;
    let row = byName.get(name);
    if (!row) byName.set(name, row = { name, windows: [], refusals: [], marks: [], gaps: [], issues: [] });
    const lasts = s.until_unix_ms >= latest, until = s.until_unix_ms;
    if (s.sid >= 0) {
      let w = row.windows.findLast((v) => v.instance === s.instance && v.sid === s.sid && (v.term === s.term || !v.term || !s.term)); // 0: not known
      if (!w) row.windows.push(w = { instance: s.instance, node: s.node, name: bySID ? s.node : undefined, sid: s.sid, term: s.term, base: s.from_unix_ms, ceil: 0 });
      w.ceil = Math.max(w.ceil, s.ceil_unix_ms, until);
      w.term ||= s.term;
      if (!quiet.test(s.what)) w.seen = until;
      w.until = lasts ? null : w.seen ?? until;
    }
    if (quiet.test(s.what)) row.gaps.push({ from: s.from_unix_ms, until: lasts ? null : until, text: bySID ? `${s.node} ${s.what}` : s.what });
    else if (s.what !== "serving") {
      for (let t = s.from_unix_ms; t <= until; t += 5000) row.refusals.push({ t, why: s.what });
    }
  }
  for (const e of events) {
    if (!/^clock_(step|suspend|stall)$/.test(e.kind)) continue;
    const holds = (w) => w.node === e.node && w.base <= e.at_unix_ms && (w.until ?? latest) >= e.at_unix_ms;
    const row = bySID ? [...byName.values()].find((r) => r.windows.some(holds)) : byName.get(e.node);
    row?.marks.push({ t: e.at_unix_ms, text: e.attributes?.step ? `clock ${e.attributes.step}` : e.kind.replaceAll("_", " ") });
  }
  return [...byName.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
}

function draw() {
  if (!known || !known.latest_unix_ms) return;
  if (known.bySID !== bySID) [known.rows, known.bySID] = [rowsOf(known), bySID];
  const { from, to } = range(), canvas = $("#timeline"), all = known.rows;
  $("#time").hidden = false;
  canvas.style.height = `${18 + 44 * Math.max(1, Math.min(all.length, shownRows))}px`;
  timeline.draw({ from, to, now: known.latest_unix_ms, rows: all.slice(0, shownRows), away: known.away });
  $("#latest").hidden = middle === null;
  $("#kept").hidden = from <= known.latest_unix_ms && to >= known.first_unix_ms;
  text($("#kept"), known.kept);
  $("#by").setAttribute("aria-pressed", String(bySID));
  $("#more").hidden = all.length <= shownRows;
  text($("#more"), `${shownRows} of ${all.length} rows are drawn.`);
}

async function load() {
  const { from, to } = known || middle !== null ? range() : {};
  const answer = document.hidden ? null : await get("stretches" + (from ? `?from=${Math.round(from)}&to=${Math.round(to)}` : ""));
  if (!answer) return;
  known = answer;
  known.away = answer.etcd_away.map((a) => [a.from_unix_ms, a.until_unix_ms || null]);
  draw();
  put(answer.table);
}

const follow = () => load().then(() => setTimeout(follow, 5000)); // The node takes a sample as often.

follow();
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
$("#time").addEventListener("click", ({ target }) => {
  if (!known) return;
  const { from, to } = range(), { zoom, move } = target.dataset;
  if (zoom) show(middle === null ? null : (from + to) / 2, width * zoom);
  if (move) show((from + to) / 2 + width * move, width);
  if (target.id === "latest") show(null, width);
  if (target.id === "by") {
    bySID = !bySID;
    show(middle, width);
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && known) draw(); });
