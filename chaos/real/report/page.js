// Draws the charts from the JSON of the page. Everything else needs no script.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("plots"), cursorNote = document.getElementById("cursor");
  const slot = data.x.length > 1 ? data.x[1] - data.x[0] : 1;
  const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Distinct colors for any number of nodes.
  const hue = (i, n) => `hsl(${n > 6 ? Math.round(i * 137.5) % 360 : [205, 32, 152, 325, 265, 95][i]} ${i % 2 ? 55 : 70}% ${dark.matches ? 62 : 42}%)`;
  const format = v => v == null ? "–" : Math.abs(v) >= 1e9 ? (v / 1e9).toPrecision(3) + "G" : Math.abs(v) >= 1e6 ? (v / 1e6).toPrecision(3) + "M" :
    Math.abs(v) >= 1e4 ? (v / 1e3).toPrecision(3) + "k" : String(+v.toPrecision(3));
  const nodes = key => (data.nodes || []).map((n, i, all) => ({ name: n.name, values: n[key], stroke: hue(i, all.length) }));
  const named = (values, strokes) => Object.entries(strokes).map(([name, stroke]) => ({ name, values: values[name], stroke }));

  const charts = () => [
    { title: "Calls", note: "per second, by outcome", series: named(data.calls, { answered: color("answered"), refused: color("refused"), unknown: color("lost") }) },
    { title: "IDs", note: "per second, by the node that issued them", series: nodes("ids") },
    { title: "Latency of calls", note: "ms, by the time of the answer", log: true, series: named(data.latency, { p50: color("answered"), p99: color("refused"), max: color("lost") }) },
    { title: "Refusals and unknown outcomes", note: "per second, by reason", series: (data.reasons || []).map((r, i, all) => ({ name: r.name, values: r.rate, stroke: hue(i, all.length) })) },
    { title: "Window left", note: "s, minimum", series: nodes("window") },
    { title: "Lease left", note: "s, minimum", series: nodes("lease") },
    { title: "Clock offset measured by a node", note: "ms, cluster minus node, largest", signed: true, series: nodes("offset") },
    { title: "Uncertainty of that offset", note: "ms, largest", signed: true, series: nodes("uncertainty") },
    { title: "Wall clock minus the observer's", note: "ms, largest", signed: true, series: nodes("wall") },
  ].filter(c => c.series.length);

  // Faults as bands behind the lines: strong until healed, faint while effects may last.
  const drawBands = u => {
    const { ctx, bbox } = u;
    const fill = (from, to, alpha) => {
      const a = Math.max(u.valToPos(from, "x", true), bbox.left), b = Math.min(u.valToPos(to, "x", true), bbox.left + bbox.width);
      if (b > a) { ctx.globalAlpha = alpha; ctx.fillRect(a, bbox.top, Math.max(b - a, 1), bbox.height); }
    };
    ctx.save();
    for (const band of data.bands) {
      ctx.fillStyle = color(band.class);
      fill(band.from, band.to, dark.matches ? 0.26 : 0.2);
      fill(band.to, band.until, dark.matches ? 0.12 : 0.08);
    }
    if (data.violation != null) {
      const x = u.valToPos(data.violation, "x", true);
      ctx.globalAlpha = 1; ctx.fillStyle = color("fail"); ctx.fillRect(x - 1, bbox.top, 2, bbox.height);
    }
    ctx.restore();
  };

  // The time and the faults under the cursor, and zoom of the timeline with the charts.
  const showCursor = u => {
    const at = u.cursor.left >= 0 && u.cursor.event ? u.posToVal(u.cursor.left, "x") : null;
    cursorNote.hidden = at == null;
    if (at == null) { return; }
    const active = data.bands.filter(b => b.from <= at && at <= b.until).map(b => `${b.name} ${b.targets}${at > b.to ? " (healed)" : ""}`);
    cursorNote.textContent = [at.toFixed(2) + " s", ...active].join(" · ");
  };
  const end = data.x[data.x.length - 1] + slot;
  const zoomTimeline = u => {
    const { min, max } = u.scales.x;
    for (const inner of document.querySelectorAll("#timeline .inner, #timeline .ticks")) {
      if (inner.className === "ticks") { inner.style.visibility = max - min < end ? "hidden" : ""; continue; }
      inner.style.left = -min / (max - min) * 100 + "%";
      inner.style.right = "auto";
      inner.style.width = end / (max - min) * 100 + "%";
    }
  };

  let plots = [];
  const width = box => Math.max(280, box.clientWidth);
  const draw = () => {
    plots.forEach(p => p.plot.destroy());
    root.textContent = "";
    plots = charts().map((chart, i) => {
      const box = document.createElement("div"), heading = document.createElement("h3"), note = document.createElement("span");
      box.className = "plot";
      heading.textContent = chart.title + " ";
      note.textContent = chart.note;
      heading.append(note);
      box.append(heading);
      root.append(box);
      const axis = { stroke: color("muted"), grid: { stroke: color("faint"), width: 1 }, ticks: { stroke: color("line"), size: 4 }, font: "11px system-ui, sans-serif" };
      const plot = new uPlot({
        width: width(box), height: 190,
        scales: {
          x: { time: false, range: (u, min, max) => [min == null ? 0 : min, max == null || max >= end - slot ? end : max] },
          y: chart.log ? { distr: 3 } : chart.signed ? { distr: 4, asinh: 1, range: (u, min, max) => [min < 0 ? min * 1.2 : -1, max > 0 ? max * 1.2 : 1] } : { range: (u, min, max) => [Math.min(0, min || 0), max > 0 ? max * 1.06 : 1] },
        },
        axes: [{ ...axis, size: 30, values: (u, ticks) => ticks.map(t => format(t) + " s") }, { ...axis, size: 52, values: (u, ticks) => ticks.map(t => t == null ? "" : format(t)) }],
        series: [{ label: "time", value: (u, v) => v == null ? "–" : v.toFixed(1) + " s" },
          ...chart.series.map(s => ({ label: s.name, stroke: s.stroke, width: 1.4, points: { show: false }, value: (u, v) => format(v) }))],
        cursor: { y: false, sync: { key: "run" }, points: { size: 5 }, drag: { x: true, y: false } },
        hooks: { drawClear: [drawBands], setCursor: [showCursor], setScale: i ? [] : [(u, key) => key === "x" && zoomTimeline(u)] },
      }, [data.x, ...chart.series.map(s => chart.log ? s.values.map(v => v > 0 ? v : null) : s.values)], box);
      return { box, plot };
    });
  };
  const resize = () => plots.forEach(p => p.plot.setSize({ width: width(p.box), height: 190 }));

  document.getElementById("hint").textContent = "Point at a chart for its values. Drag to zoom all of them; double-click to see the whole run. Bands are faults: strong until healed, faint while effects may last.";
  draw();
  addEventListener("resize", resize);
  dark.addEventListener("change", draw);
  for (const row of document.querySelectorAll("tr.here")) {
    const box = row.closest(".scroll");
    box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }
})();
