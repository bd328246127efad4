// Moves and zooms the timeline, which the server draws, and says what a pointer is at. The links on the page do the same
// without scripts.

import { $, get, show, text } from "./console.js";

let grip = null, wanted = null, soon, turn = Promise.resolve();

// range returns what is drawn, in ms.
function range() {
  const { from, to } = $("#timeline").dataset;
  return { from: Number(from), to: Number(to) };
}

async function load() {
  const asked = location.search, html = document.hidden ? null : await get("stretches" + asked, "text/html");
  if (html && asked === location.search && !wanted) show(html);
}

function go(search) {
  wanted = null;
  history.replaceState(null, "", location.pathname + search);
  return load();
}

// want moves what is drawn to another range at once, and soon has it drawn.
function want(from, to) {
  const now = range(), scale = (now.to - now.from) / (to - from);
  wanted = { from, to };
  $("#timeline").style.transform = `translateX(${(now.from - from) / (to - from) * 100}%) scaleX(${scale})`;
  clearTimeout(soon);
  soon = setTimeout(() => {
    const q = new URLSearchParams({ at: new Date(Math.round((from + to) / 2)).toISOString(), span: Math.round((to - from) / 1e3) });
    if (location.search.endsWith("by=sid")) q.set("by", "sid");
    go("?" + q);
  }, 200);
}

// say writes what is at a point.
function say({ clientX, clientY }) {
  const hit = document.elementsFromPoint(clientX, clientY).map((el) => el.closest("#timeline [data-says]")).filter(Boolean);
  const row = hit.map((el) => el.closest("[data-row]")?.dataset.row).find(Boolean);
  const words = [...new Set(hit)].map((el) => el.dataset.says).filter(Boolean).join("; ");
  text($("#moment"), words && row ? `${row}: ${words}` : "");
}

const box = $("#time");
box.addEventListener("click", (e) => {
  const link = e.target.closest("#moves a");
  if (!link || e.ctrlKey || e.metaKey || e.shiftKey) return;
  e.preventDefault();
  turn = turn.then(() => go(new URL(link.href).search)); // The link leads on from what the one before shows.
});
box.addEventListener("wheel", (e) => {
  if (!e.target.closest("#timeline") || !(e.ctrlKey || e.metaKey)) return;
  e.preventDefault();
  const { from, to } = wanted ?? range(), r = $(".strip").getBoundingClientRect();
  const at = from + (e.clientX - r.x) / r.width * (to - from), span = Math.min(3600e3, Math.max(60e3, (to - from) * (e.deltaY > 0 ? 1.25 : 0.8)));
  const left = at - (at - from) * span / (to - from);
  want(left, left + span);
}, { passive: false });
box.addEventListener("pointerdown", (e) => {
  if (!e.target.closest("#timeline")) return;
  say(e);
  grip = { x: e.clientX, ...range() };
  $(".strip").setPointerCapture(e.pointerId);
});
box.addEventListener("pointermove", (e) => {
  say(e);
  if (!grip || Math.abs(e.clientX - grip.x) < 4) return;
  const moved = (grip.x - e.clientX) * (grip.to - grip.from) / $(".strip").clientWidth;
  want(grip.from + moved, grip.to + moved);
});
for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, () => { grip = null; });
setInterval(load, 5000); // The node takes a sample as often.
document.addEventListener("visibilitychange", load);
