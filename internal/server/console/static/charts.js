// Draws lines over time in elements of a page. The server says which, and what happened meanwhile.

import { $, get, text } from "./console.js";

const palette = ["#3b76e0", "#d1762a", "#2f9e5f", "#a04fd0", "#c2455f", "#2a9aa8", "#8a8f2d", "#7a6a5a"];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const utc = (s) => new Date(s * 1000).toISOString().slice(11, 19);
const drawings = new Map([...document.querySelectorAll("[data-chart]")].map((el) => [el.dataset.chart, { el }]));
let known = null, span = location.hash === "#1h" ? "1h" : "15m";

// latest makes a legend show the latest values until a pointer shows others.
const latest = (say) => (u, v, i, at) => ((v = at === null ? u.data[i].at(-1) : v) === null || v === undefined ? "–" : say(v));

// marks draws across a chart when something happened.
function marks(u) {
  const { left, top, width, height } = u.bbox;
  for (const m of known.marks) {
    const x = u.valToPos(m.at, "x", true);
    if (x < left || x > left + width) continue;
    u.ctx.globalAlpha = 0.55;
    u.ctx.fillStyle = css(m.bad ? "--bad-fill" : "--wait");
    u.ctx.fillRect(Math.round(x), top, devicePixelRatio, height);
  }
  u.ctx.globalAlpha = 1;
}

// point says what happened near the pointer.
function point(u) {
  if (u.cursor.left < 0) return;
  const near = (m) => Math.abs(u.valToPos(m.at, "x") - u.cursor.left);
  const best = known.marks.reduce((best, m) => (near(m) <= (best ? near(best) : 6) ? m : best), null);
  if (best) text($("#moment"), best.text);
}

// draw makes a chart, or gives it new data.
function draw(figure, { labels, lists, unit, from_zero: fromZero }) {
  const data = [known.times, ...lists], plot = $(".plot", figure.el);
  figure.el.hidden = false;
  const width = plot.clientWidth, key = [width, known.span, ...labels].join("\n"), say = (v) => v.toLocaleString("en-US") + unit;
  if (figure.key === key) return figure.u.setData(data);
  figure.u?.destroy();
  const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  figure.key = key;
  figure.u = new uPlot({
    width, height: drawings.size > 1 ? 150 : 240, padding: [null, width < 400 ? 32 : null, null, null], legend: { live: true }, cursor: { drag: { x: false, y: false }, sync: { key: "past" } },
    scales: { x: { range: (_, min, max) => [Math.max(max - known.span, Math.min(min, max - 120)), max] }, y: fromZero ? { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } : {} },
    axes: [{ ...axis, space: 80, values: (_, list) => list.map(utc) }, { ...axis, size: 76, values: (_, list) => list.map(say) }],
    series: [{ label: "UTC", value: latest(utc) },
      ...labels.map((label, i) => ({ label, stroke: palette[i % palette.length], width: 1.5, points: { show: false }, value: latest(say) }))],
    hooks: { draw: [marks], setCursor: [point] },
  }, data, plot);
}

function drawAll() {
  if (!known || !window.uPlot || known.times.length < 2) return;
  if ($("#past")) $("#past").hidden = false;
  for (const b of document.querySelectorAll("[data-span]")) b.setAttribute("aria-pressed", String(b.dataset.span === span));
  for (const [name, figure] of drawings) if (known.charts[name]) draw(figure, known.charts[name]);
}

async function load() {
  const asked = span, answer = document.hidden ? null : await get(`charts?page=${document.body.dataset.page}&span=${asked}`);
  if (!answer || asked !== span) return;
  known = answer;
  drawAll();
}

const follow = () => load().then(() => setTimeout(follow, 5000)); // The node takes a sample as often.

follow();
document.addEventListener("visibilitychange", load);
addEventListener("resize", drawAll);
$("#past")?.addEventListener("click", (e) => {
  if (!e.target.dataset.span) return;
  span = e.target.dataset.span;
  history.replaceState(null, "", span === "1h" ? "#1h" : location.pathname);
  load();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const figure of drawings.values()) figure.key = null;
  drawAll();
});
