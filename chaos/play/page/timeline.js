// Draws what happened in rows over time. It knows neither where the data comes from nor
// who shows it: times are milliseconds since any moment, and colors are the page's own.

// Timeline draws on a canvas. Wheel with Ctrl, and dragging, ask for another range by onrange(from, to). A pointer over it,
// or a tap, is answered by onpoint(words).
class Timeline {
  static axis = 18; // px, of the scale at the bottom

  constructor(canvas, onrange, onpoint) {
    this.canvas = canvas;
    this.data = null;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colors = null; });
    canvas.addEventListener("wheel", (e) => {
      if (!this.data || !(e.ctrlKey || e.metaKey)) return;
      e.preventDefault();
      const { from, to } = this.data, at = this.timeAt(e.offsetX), factor = e.deltaY > 0 ? 1.25 : 0.8;
      onrange(at - (at - from) * factor, at + (to - at) * factor);
    }, { passive: false });
    let grip = null;
    canvas.addEventListener("pointerdown", (e) => {
      if (!this.data) return;
      onpoint(this.at(e.offsetX, e.offsetY));
      grip = { x: e.clientX, from: this.data.from, to: this.data.to };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", (e) => {
      onpoint(this.at(e.offsetX, e.offsetY));
      if (!grip || Math.abs(e.clientX - grip.x) < 4) return;
      const moved = (grip.x - e.clientX) * (grip.to - grip.from) / this.width();
      onrange(grip.from + moved, grip.to + moved);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { grip = null; });
  }

  // draw shows {from, to, now, rows, away}. A row is {name, windows, issues, refusals, marks, gaps}:
  // windows are {sid, term, base, ceil, until}, until being when the holder ended, or null;
  // issues are times; refusals {t, why} and marks {t, text} are moments; gaps are {from, until, text};
  // away are [from, until] of etcd. All lists ascend; null for until means: not yet.
  draw(data) {
    this.data = data;
    const c = this.begin(), { rows, now } = data;
    this.gutter = Math.ceil(Math.max(0, ...rows.map((r) => c.measureText(r.name).width))) + 12;
    this.rowHeight = (this.high - Timeline.axis) / Math.max(1, rows.length);
    this.scale(c);
    c.save();
    c.beginPath();
    c.rect(this.gutter, 0, this.wide - this.gutter, this.high);
    c.clip();
    for (const [a, b] of data.away) this.band(c, a, b ?? now, 0, this.high - Timeline.axis, "etcd away");
    rows.forEach((row, i) => this.row(c, row, i * this.rowHeight));
    c.strokeStyle = this.colors.text;
    c.lineWidth = 1.5;
    this.line(c, this.x(now), 0, this.x(now), this.high - Timeline.axis);
    c.restore();
    c.fillStyle = this.colors.text;
    c.textBaseline = "middle";
    rows.forEach((row, i) => c.fillText(row.name, 4, (i + 0.5) * this.rowHeight));
  }

  // at says in words what is drawn at a point, or "".
  at(x, y) {
    const d = this.data, row = d && x >= this.gutter && d.rows[Math.floor(y / this.rowHeight)];
    if (!row) return "";
    const t = this.timeAt(x), near = 5 * (d.to - d.from) / this.width();
    const closest = (list) => list.reduce((best, m) => (Math.abs(m.t - t) < Math.abs((best?.t ?? Infinity) - t) ? m : best), null);
    const within = (m) => m && Math.abs(m.t - t) <= near;
    const mark = closest(row.marks), refusal = closest(row.refusals);
    const parts = [];
    if (within(mark)) parts.push(`${Timeline.time(mark.t)}: ${mark.text}`);
    if (within(refusal)) parts.push(`${Timeline.time(refusal.t)}: refused, ${refusal.why}`);
    const w = row.windows.findLast((v) => v.base <= t && t < v.ceil);
    if (w) parts.push(`sid ${w.sid}, term ${w.term}: window from ${Timeline.time(w.base)} to ${Timeline.time(w.ceil)}${w.until === null ? "" : ", holder gone"}`);
    const gap = row.gaps.findLast((g) => g.from <= t && t < (g.until ?? d.now));
    if (gap) parts.push(gap.text);
    if (d.away.some(([a, b]) => a <= t && t < (b ?? d.now))) parts.push("etcd is away");
    return parts.length ? `${row.name}: ${parts.join("; ")}` : "";
  }

  static time(ms) {
    const s = Math.abs(ms) / 1e3, minutes = Math.floor(s / 60), rest = (s % 60).toFixed(1).padStart(4, "0");
    return `${ms < 0 ? "-" : ""}${minutes}:${rest}`;
  }

  // ---- parts

  begin() {
    const { canvas } = this, ratio = devicePixelRatio || 1;
    if (!this.colors) {
      const style = getComputedStyle(canvas), of = (name) => style.getPropertyValue(name).trim();
      this.colors = {
        paper: style.backgroundColor, text: of("--text"), muted: of("--muted"), line: of("--line"), window: of("--accent"), issue: of("--ok-fill"), refusal: of("--bad-fill"),
        refusalText: of("--bad"), mark: of("--warn"), away: of("--idle"),
      };
      this.font = `12px ${style.fontFamily}`;
    }
    this.wide = canvas.clientWidth;
    this.high = canvas.clientHeight;
    if (canvas.width !== Math.round(this.wide * ratio) || canvas.height !== Math.round(this.high * ratio)) {
      canvas.width = Math.round(this.wide * ratio);
      canvas.height = Math.round(this.high * ratio);
    }
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, this.wide, this.high);
    c.font = this.font;
    return c;
  }

  width() { return Math.max(1, this.wide - this.gutter); }

  x(t) { return this.gutter + (t - this.data.from) * this.width() / (this.data.to - this.data.from); }

  timeAt(x) { return this.data.from + (x - this.gutter) * (this.data.to - this.data.from) / this.width(); }

  line(c, x1, y1, x2, y2) {
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x2, y2);
    c.stroke();
  }

  // scale draws the axis: a line each round number of seconds.
  scale(c) {
    const { from, to } = this.data, least = 64 * (to - from) / this.width();
    const step = [10, 100, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 18e5, 36e5].find((s) => s >= least) ?? 36e5;
    c.strokeStyle = this.colors.line;
    c.fillStyle = this.colors.muted;
    c.lineWidth = 1;
    c.textBaseline = "alphabetic";
    for (let t = Math.max(0, Math.ceil(from / step) * step); t <= to; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      this.line(c, x, 0, x, this.high - Timeline.axis);
      const label = step < 1e3 ? `${(t / 1e3).toFixed(2)} s` : Timeline.time(t).replace(/\.0$/, "");
      if (x + 3 + c.measureText(label).width <= this.wide) c.fillText(label, x + 3, this.high - 5);
    }
    for (let i = 1; i <= this.data.rows.length; i++) this.line(c, 0, i * this.rowHeight, this.wide, i * this.rowHeight);
  }

  // band is a hatched stretch of time.
  band(c, a, b, y, high, name) {
    const left = Math.max(this.x(a), this.gutter), right = Math.min(this.x(b), this.wide);
    if (right <= left) return;
    c.save();
    c.beginPath();
    c.rect(left, y, right - left, high);
    c.clip();
    c.fillStyle = c.strokeStyle = this.colors.away;
    c.globalAlpha = 0.25;
    c.fillRect(left, y, right - left, high);
    c.globalAlpha = 0.5;
    c.lineWidth = 1;
    for (let x = left - high - (left - high) % 8; x < right; x += 8) this.line(c, x, y + high, x + high, y);
    c.globalAlpha = 1;
    c.fillStyle = this.colors.text;
    c.textBaseline = "top";
    if (right - left > c.measureText(name).width + 6) c.fillText(name, left + 4, y + 2);
    c.restore();
  }

  row(c, row, y) {
    const high = this.rowHeight, { from, to, now } = this.data, top = y + high * 0.3, bar = high * 0.4;
    for (const g of row.gaps) this.band(c, g.from, g.until ?? now, y + 1, high - 2, g.text);
    c.textBaseline = "middle";
    for (const w of row.windows) {
      if (w.ceil < from || w.base > to) continue;
      const left = this.x(w.base), right = this.x(w.ceil);
      const used = Math.min(right, Math.max(left, this.x(Math.min(w.until ?? now, now))));
      c.fillStyle = c.strokeStyle = this.colors.window;
      c.globalAlpha = 0.4; // used up
      c.fillRect(left, top, used - left, bar);
      c.globalAlpha = w.until === null ? 0.18 : 0.06; // reserved ahead; nobody's any more
      c.fillRect(used, top, right - used, bar);
      c.globalAlpha = 1;
      c.lineWidth = 1;
      c.setLineDash(w.until === null ? [] : [3, 3]);
      c.strokeRect(left, top, right - left, bar);
      c.setLineDash([]);
    }
    c.strokeStyle = this.colors.issue;
    c.lineWidth = 1;
    this.ticks(c, row.issues, (t) => t, top + 2, top + bar - 2);
    c.strokeStyle = this.colors.refusal;
    c.lineWidth = 2;
    this.ticks(c, row.refusals, (r) => r.t, y + high * 0.72, y + high * 0.95);
    c.fillStyle = this.colors.text;
    for (const w of row.windows) { // above the ticks
      const left = Math.max(this.x(w.base), this.gutter), name = `sid ${w.sid}`;
      if (this.x(w.ceil) - left > c.measureText(name).width + 8) this.words(c, name, left + 4, top + bar / 2);
    }
    if (high >= 34) this.reasons(c, row.refusals, y + high * 0.84);
    for (const m of row.marks) {
      if (m.t < from || m.t > to) continue;
      const x = this.x(m.t);
      c.fillStyle = this.colors.mark;
      c.beginPath();
      c.moveTo(x - 5, y + 2);
      c.lineTo(x + 5, y + 2);
      c.lineTo(x, y + high * 0.28);
      c.fill();
      if (high >= 34) this.words(c, m.text, x + 7, y + high * 0.15);
    }
  }

  // words is text that is read above whatever is below it.
  words(c, text, x, y) {
    const fill = c.fillStyle;
    c.fillStyle = this.colors.paper;
    c.globalAlpha = 0.85;
    c.fillRect(x - 2, y - 7, c.measureText(text).width + 4, 14);
    c.globalAlpha = 1;
    c.fillStyle = fill;
    c.fillText(text, x, y);
  }

  // ticks draws moments as lines, at most one a pixel.
  ticks(c, list, time, top, bottom) {
    let low = 0;
    for (let high = list.length; low < high;) {
      const mid = (low + high) >> 1;
      if (time(list[mid]) < this.data.from) low = mid + 1; else high = mid;
    }
    c.beginPath();
    for (let last = -1; low < list.length; low++) {
      const t = time(list[low]);
      if (t > this.data.to) break;
      const x = Math.round(this.x(t)) + 0.5;
      if (x === last) continue;
      last = x;
      c.moveTo(x, top);
      c.lineTo(x, bottom);
    }
    c.stroke();
  }

  // reasons writes why into each run of refusals for one reason, as far as it is as wide as the words: at has the rest.
  reasons(c, list, y) {
    c.fillStyle = this.colors.refusalText;
    for (let i = 0; i < list.length;) {
      let end = i;
      while (list[end + 1]?.why === list[i].why && list[end + 1].t - list[end].t <= 10e3) end++;
      const x = Math.max(this.gutter, this.x(list[i].t)) + 4, right = Math.min(this.wide, this.x(list[end].t));
      if (x + c.measureText(list[i].why).width <= right) this.words(c, list[i].why, x, y);
      i = end + 1;
    }
  }
}
