// Runs in a page before its own scripts, and notes what happens there with the page's clock.
(() => {
  const probe = { log: [], violations: [], feeds: [], ids: [], took: [], bytes: 0, snapshots: 0, heard: 0 };
  Object.defineProperty(window, "probe", { value: probe });
  const note = (where, key, name, value) => probe.log.push({ t: performance.now(), in: where, key, name, value: String(value) });

  addEventListener("securitypolicyviolation", (e) => probe.violations.push(`${e.effectiveDirective}: ${e.blockedURI} ${e.sample}`), true);
  addEventListener("click", (e) => {
    if (e.target.form?.elements.target) note("click", e.target.form.elements.target.value, e.target.name, e.target.value);
  }, true);
  new MutationObserver((list) => {
    for (const m of list) {
      const el = m.target, name = m.attributeName;
      if (m.oldValue === el.getAttribute(name) || (name === "class" && el !== document.body)) continue;
      if (name === "width" && !el.matches("#sids .fill")) continue;
      note(el.closest("table")?.id || el.id || el.tagName, el.dataset.node || el.closest("[data-key]")?.dataset.key || "", name, el.getAttribute(name));
    }
  }).observe(document, { subtree: true, attributes: true, attributeOldValue: true, attributeFilter: ["data-answer", "data-process", "data-state", "data-bad", "class", "width"] });

  const texts = (list) => [...list].map((el) => el.textContent.trim());
  // read returns what the page shows.
  probe.read = () => ({
    tables: Object.fromEntries([...document.querySelectorAll("table[id]")].map((t) => [t.id,
      [...t.tBodies[0].rows].filter((r) => r.className !== "none").map((r) => ({ key: r.dataset.key || "", state: r.dataset.state || "", cells: texts(r.cells) }))])),
    tiles: Object.fromEntries([...document.querySelectorAll(".tiles > div")].map((d) => [d.querySelector("dt").textContent, d.querySelector("dd").textContent.trim()])),
    cards: Object.fromEntries([...document.querySelectorAll(".card[data-node]")].map((c) => [c.dataset.node,
      Object.fromEntries([...c.querySelectorAll("[data-field]")].map((f) => [f.dataset.field, f.textContent.trim()]))])),
    counter: Object.fromEntries([...document.querySelectorAll("#counter [data-broken]")].map((f) => [f.dataset.broken, f.textContent.trim()])),
    summary: document.querySelector("#summary .text")?.textContent || "",
    level: document.querySelector("#summary")?.classList[1] || "",
    stale: document.body.classList.contains("stale"),
    live: document.querySelector("#live")?.textContent || "",
  });

  const Source = window.EventSource;
  window.EventSource = class extends Source {
    constructor(url) {
      super(url);
      probe.feeds.push(String(url));
    }
    addEventListener(kind, f) {
      super.addEventListener(kind, (e) => {
        const began = performance.now();
        f(e);
        probe.heard = performance.now();
        if (kind === "event") probe.ids.push(e.lastEventId);
        if (kind !== "show") return;
        probe.took.push(probe.heard - began);
        probe.bytes += e.data.length;
        probe.snapshots++;
      });
    }
  };
})();
