// The page of the simulation. What it shows is what the simulation says: nothing is decided here.

"use strict";

const $ = (selector) => document.querySelector(selector);
const speeds = [0.1, 0.3, 1, 3, 10, 30];
const kept = 10 * 60e3; // ms of past that the timeline keeps
const most = { moments: 20000, dots: 80, lines: 300, samples: 2400 };
const frameBudget = 8; // ms of a frame that the simulation may take
const hurryBudget = 30; // and where nobody looks yet
const calm = matchMedia("(prefers-reduced-motion: reduce)");

globalThis.allocatorPrograms = {};

// ---- programs: the product and its mutants, each in a script of its own

const compiled = new Map(); // name to WebAssembly.Module: of the product, and of the latest of the mutants

function load(name) {
  if (allocatorPrograms[name]) return Promise.resolve();
  return new Promise((loaded, failed) => {
    const script = document.createElement("script");
    script.src = `${name}.js`;
    script.onload = loaded;
    script.onerror = () => failed(new Error(`${name}.js was not found`));
    document.head.append(script);
  });
}

async function program(name) {
  if (!compiled.has(name)) {
    await load(name);
    const bytes = Uint8Array.from(atob(allocatorPrograms[name]), (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    compiled.set(name, await WebAssembly.compileStreaming(new Response(plain, { headers: { "Content-Type": "application/wasm" } })));
    delete allocatorPrograms[name];
    for (const other of compiled.keys()) if (other !== "sim" && other !== name) compiled.delete(other);
  }
  const go = new Go();
  const instance = await WebAssembly.instantiate(compiled.get(name), go.importObject);
  return new Promise((ready, failed) => {
    globalThis.allocatorReady = ready;
    go.run(instance).then(() => go._scheduledTimeouts.forEach(clearTimeout), failed); // They would resume what has ended.
  });
}

// ---- the run

let sim = null;      // functions of the program that runs
let catalog = { scenes: [], rules: [] };
let view = null;     // what the simulation said last
let rule = "";       // that is left out; "": none
let scene = null;    // that is being played
let stepAt = -1;     // number of the step of the scene that is shown
let ended = false;   // the scene was played to its end
let playing = false;
let finishing = false; // as fast as possible, to the end
let speed = 1;
let reached = 1;     // speed of the last frames
let chosen = 0;      // number of a node; -1: etcd
let sids = 0;        // of the run; 0: as many as the layout has
let minutes = 0;     // of faults, in a seed of the campaigns; 0: as drawn
let past = null;  // what happened, as far as it is kept
let cost = 0.02;     // ms of an event, as measured

function clear() {
  past = { rows: [], away: [], dots: [], lines: [], samples: [] };
}

// ask asks a program. Without an answer the page says why.
function ask(of, name, ...args) {
  try {
    const answer = JSON.parse(of[name](...args));
    if (!answer.error || name === "act") return answer;
    fail(`The run does not begin: ${answer.error}`);
  } catch (e) {
    fail(`The simulation ended: ${e.message}. Begin another run.`);
    of.program = ""; // It is started anew.
  }
  playing = finishing = false;
}

// leave ends a program, if it has not ended by itself.
function leave(of) {
  try {
    of?.exit();
  } catch {} // It cannot be called any more.
}

// call asks the program that runs, and takes in what it says.
function call(name, ...args) {
  const answer = ask(sim, name, ...args);
  if (!answer) return;
  view = answer;
  take(answer);
  if (name === "act") say(answer.error ? `Not done: ${answer.error}` : "");
  return answer;
}

// idle are the states of a node that has no sid, by the reason of its refusals: it was not asked for an ID before.
const idle = { STARTING: "starting", CLOCK_UNVERIFIED: "starting", NO_SID: "standby" };

function push(list, entry) {
  list.push(entry);
  if (list.length > most.moments) list.splice(0, list.length - most.moments);
}

// take adds what happened to the past.
function take(v) {
  for (const n of v.nodes.slice(past.rows.length)) {
    past.rows.push({ name: n.name, windows: [], issues: [], refusals: [], marks: [], gaps: [] });
  }
  for (const e of v.happened) {
    const row = past.rows[e.n];
    switch (e.k) {
      case "issue":
        if (Object.values(idle).includes(row.gaps.at(-1)?.text)) close(row, e.t);
        push(row.issues, e.t);
        break;
      case "refuse": {
        const holds = row.windows.at(-1)?.until === null && e.what !== "STARTING"; // A new window may lie ahead.
        const waits = holds ? undefined : idle[e.what], gap = row.gaps.at(-1);
        if (!waits) push(row.refusals, { t: e.t, why: e.what });
        else if (gap?.until !== null || gap.text !== waits) {
          close(row, e.t);
          push(row.gaps, { from: e.t, until: null, text: waits });
        }
        break;
      }
      case "window": {
        if (row.gaps.at(-1)?.text === "standby") close(row, e.t);
        const held = row.windows.findLast((w) => w.sid === e.sid && w.term === e.term && w.p === e.p);
        for (const w of past.rows.flatMap((r) => r.windows)) { // The next holder of a sid may begin earlier, if the window was given back.
          if (w.sid === e.sid && w.sealed !== undefined) w.ceil = Math.min(w.ceil, Math.max(w.sealed, e.base));
        }
        if (held) held.ceil = e.ceil;
        else push(row.windows, { sid: e.sid, term: e.term, base: e.base, ceil: e.ceil, until: null, p: e.p });
        break;
      }
      case "seal": {
        const w = row.windows.findLast((w) => w.sid === e.sid && w.p === e.p && w.until === null);
        if (w) [w.sealed, w.until] = [e.ceil, e.t]; // Its IDs are below; etcd has it as it was.
        break;
      }
      case "end":
        for (const w of row.windows) w.until ??= e.t;
        close(row, e.t);
        push(row.gaps, { from: e.t, until: null, text: "down" });
        break;
      case "start": close(row, e.t); break;
      case "pause": close(row, e.t); push(row.gaps, { from: e.t, until: null, text: "paused", p: e.p }); break;
      case "resume": if (row.gaps.at(-1)?.p === e.p) close(row, e.t); break;
      case "step": push(row.marks, { t: e.t, text: `clock ${e.what ?? signed(e.by)}` }); break;
      case "drift": push(row.marks, { t: e.t, text: e.by ? `clock drifts, ${signed(e.by)} a second` : "clock drifts no more" }); break;
      case "away": push(past.away, [e.t, e.until]); break;
      case "act": past.lines.push(`${seconds(e.t)} you: ${e.what}`); break;
      case "msg":
        if (past.dots.length < most.dots) past.dots.push({ ...e, p: 0, age: 0 });
        break;
    }
  }
  past.lines.push(...v.log);
  past.lines.splice(0, past.lines.length - most.lines);
  if (v.now - (past.samples.at(-1)?.now ?? -Infinity) >= 250) {
    past.samples.push({ now: v.now, event: v.event });
    past.samples.splice(0, past.samples.length - most.samples);
  }
  forget(v.now - kept);
}

function close(row, t) {
  const last = row.gaps.at(-1);
  if (last) last.until ??= t;
}

// forget drops what has left the timeline, a minute at a time.
let forgotten = 0;
function forget(before) {
  if (before < forgotten) forgotten = 0; // another run
  if (before < forgotten + 60e3) return;
  forgotten = before;
  const drop = (list, time) => {
    const first = list.findIndex((e) => time(e) >= before);
    list.splice(0, first < 0 ? list.length : first);
  };
  for (const row of past.rows) {
    drop(row.issues, (t) => t);
    drop(row.refusals, (r) => r.t);
    drop(row.marks, (m) => m.t);
    drop(row.gaps, (g) => g.until ?? Infinity);
    row.windows = row.windows.filter((w) => w.until === null || Math.max(w.until, w.ceil) >= before);
  }
  drop(past.away, (a) => a[1] ?? Infinity);
}

// begin starts a run. With a rule it runs the program that lacks it. If it cannot be begun, the one that is shown goes on.
let beginning = 0, loading = 0; // programs
async function begin(options, { withScene = null, without = "", visit = false } = {}) {
  const number = ++beginning;
  playing = finishing = false;
  told = false;
  $("#broken").hidden = true; // It is of the run before; alarm shows it again if that one goes on.
  const name = without ? `rule-${without}` : "sim";
  let next = sim;
  if (!sim || sim.program !== name) {
    loading++;
    try {
      next = await program(name);
    } catch (e) {
      fail(`The simulation does not start: ${e.message}. The browser must know WebAssembly and DecompressionStream; use one of 2023 or later.`);
      return false;
    } finally {
      loading--;
    }
    if (number !== beginning) { // something else was begun meanwhile
      leave(next);
      return false;
    }
    next.program = name;
  }
  const first = ask(next, "begin", JSON.stringify({ acts: "", until: 0, nodes: 4, ...options, seed: String(options.seed) }));
  if (next !== sim) leave(first ? sim : next);
  if (!first) return false;
  sim = next;
  if (catalog.scenes.length === 0) lists(); // It is the same of all programs.
  [rule, scene, stepAt, ended, forgotten] = [without, withScene, -1, false, 0];
  clear();
  view = first;
  take(first);
  pinned = null;
  [sids, minutes] = [options.sids ?? 0, options.minutes ?? 0];
  $("#problem").hidden = true;
  chosen = Math.min(chosen, view.nodes.length - 1);
  cards();
  fill();
  share(visit);
  guide();
  return true;
}

function play(on) {
  playing = on && !view.over;
  if (!playing) finishing = false;
  shown = 0;
}

// advance lets time pass: no further than the next text of a scene, and no longer than a frame has time for.
function advance(ms) {
  const goal = limit();
  const began = performance.now(), from = view.now, event = view.event;
  const budget = finishing || hurries() ? hurryBudget : frameBudget;
  const v = call("advance", Math.min(ms, (hurries() ? scene.from : goal) - from), Math.max(10, Math.ceil(budget / cost)));
  if (!v) return;
  const took = performance.now() - began;
  if (v.event - event >= 5) cost += ((took / (v.event - event)) - cost) * 0.1;
  if (v.now >= goal) arrive();
  if (v.twin && !told) playing = finishing = false; // the panel says why
  if (v.over) playing = finishing = false;
}

// hurries reports whether the scene has not come to what is worth looking at.
const hurries = () => Boolean(scene) && view.now < scene.from;

const limit = () => (scene && !ended ? (rule ? scene.ends : scene.steps[stepAt + 1]?.at ?? scene.ends) : Infinity);

// arrive shows the next text of the scene, or its end.
function arrive() {
  if (!rule && stepAt + 1 < scene.steps.length && view.now >= scene.steps[stepAt + 1].at) stepAt++;
  if (view.now >= scene.ends && (rule || stepAt + 1 >= scene.steps.length)) {
    ended = true;
    pinned = { from: -0.02 * scene.ends, to: scene.ends * 1.15 }; // the whole scene
  }
  playing = false;
  shown = 0;
  guide();
}

// act does something in the run. What the rest of a scene would say is not so any more: it is left.
function act(kind) {
  const node = chosen < 0 ? "" : view.nodes[chosen].name;
  const done = call("act", kind.replace(":*", `:${node}`));
  if (done && !done.error && scene && !rule && !ended) {
    leaveScene();
    say("The scene is left: its texts are about the run without this.");
  } else share();
  shown = 0;
}

// replay plays the run again up to an event, and on to a time. The samples before it are those of the same run, and the
// next replay begins at one of them.
function replay(events, goal = 0) {
  playing = finishing = false;
  const samples = past.samples.filter((s) => s.event <= events);
  clear();
  past.samples = samples;
  forgotten = 0;
  call("back", Math.max(0, events));
  pass(goal);
  if (scene) {
    ended = view.now >= scene.ends;
    stepAt = rule ? -1 : scene.steps.findLastIndex((s) => s.at <= view.now);
    guide();
  }
  shown = 0;
}

function back(ms) {
  const goal = Math.max(0, view.now - ms);
  const event = past.samples.findLast((s) => s.now <= goal)?.event ?? 0;
  replay(event, goal);
}

// pass lets time pass up to a goal at once. Times are whole nanoseconds, and sums of them in ms are not exact: what
// is left of less than one cannot pass.
function pass(goal) {
  while (goal - view.now >= 1e-6 && !view.over && !(view.twin && !told) && call("advance", goal - view.now, 5000));
}

function on(ms) {
  play(false);
  pass(Math.min(view.now + ms, limit()));
  if (view.now >= limit()) arrive();
  shown = 0;
}

// ---- the address: seed, mode, nodes, rule, scene and acts

let address = "";
function share(visit = false) {
  const list = new URLSearchParams();
  list.set("seed", view.seed);
  list.set("mode", view.mode);
  if (view.mode === "calm") list.set("nodes", view.nodes.length);
  if (sids) list.set("sids", sids);
  if (minutes) list.set("minutes", minutes);
  const shows = catalog.rules.find((r) => r.scene === scene);
  if (rule) list.set("rule", rule);
  else if (shows) list.set("with", shows.name);
  else if (scene) list.set("scene", scene.name);
  if (view.acts) list.set("acts", view.acts);
  address = `#${list.toString().replaceAll("%3A", ":").replaceAll("%3B", ";")}`;
  if (location.hash === address) return;
  if (visit) location.hash = address; // "Back" leads to the run before.
  else location.replace(address);
}

async function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  const without = asked.get("rule") ?? "";
  if (!sim && !(await begin({ seed: 1, mode: "calm" }))) return; // for the catalog
  const named = without || asked.get("with"), shows = catalog.rules.find((r) => r.name === named);
  if (named && !shows) return fail(`There is no rule ${named}.`);
  const opening = asked.size ? asked.get("scene") : catalog.scenes[0].name;
  const withScene = shows?.scene ?? catalog.scenes.find((s) => s.name === opening) ?? null;
  const seed = asked.get("seed") ?? String(withScene?.seed ?? newSeed());
  if (!/^\d{1,20}$/.test(seed)) return fail(`${seed} is no seed: a seed is a number.`);
  const options = {
    seed, mode: asked.get("mode") ?? withScene?.mode ?? "calm", nodes: Number(asked.get("nodes") ?? withScene?.nodes ?? 4), sids: Number(asked.get("sids") ?? withScene?.sids ?? 0),
    minutes: Number(asked.get("minutes") ?? 0), acts: asked.get("acts") ?? withScene?.acts ?? "",
  };
  if (!(await begin(options, { withScene, without }))) return;
  if (view.mode !== "calm" && !scene) finish();
  else if (!calm.matches) start();
  else if (scene && !rule) on(limit()); // to its first text: nothing moves
}

// asMany is how many nodes another run is to have: a seed of the campaigns draws its own number.
const asMany = () => (view.mode === "calm" ? view.nodes.length : 4);

const newSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);

// start plays; a scene first shows its first text.
function start() {
  if (ended) pinned = null;
  if (scene && !ended && view.now >= limit()) return arrive();
  play(true);
  guide();
}

function finish() {
  finishing = true;
  play(true);
}

// playScene begins a scene and shows its first text. With a rule left out it runs through.
async function playScene(s, without = "") {
  if (!(await begin({ seed: s.seed, mode: s.mode, nodes: s.nodes, sids: s.sids, acts: s.acts }, { withScene: s, without, visit: true }))) return;
  start();
}

// ---- texts

const seconds = (ms) => Timeline.time(ms);
const count = (n) => n.toLocaleString("en-US");

function span(ms) {
  const a = Math.abs(ms);
  if (a < 0.9995) return `${Math.round(ms * 1e3)} µs`;
  if (a < 9999) return `${ms.toFixed(a < 100 ? 1 : 0)} ms`;
  return `${(ms / 1e3).toFixed(1)} s`;
}

const signed = (ms) => `${ms < 0 ? "" : "+"}${span(ms)}`;

function text(el, value) {
  value = String(value);
  if (el.textContent !== value) el.textContent = value;
}

function make(name, properties = {}, ...children) {
  const el = Object.assign(document.createElement(name), properties);
  el.append(...children);
  return el;
}

function fail(message) {
  $("#problem").hidden = false;
  text($("#problem"), message);
}

function say(message) { text($("#said"), message); }

// state is what a node does: a word, and more.
function state(n) {
  if (!n.up) return ["down", ""];
  if (n.paused) return ["paused", ""];
  if (n.serving) return ["issuing", `sid ${n.sid}`];
  const waits = (!n.held || n.reason === "STARTING") && (n.reason ? idle[n.reason] : "starting");
  if (waits) return [waits, n.reason === "CLOCK_UNVERIFIED" ? "measures clocks" : waits === "standby" ? "no sid" : n.phase];
  return ["refusing", n.reason.toLowerCase().replaceAll("_", " ") || n.phase];
}

// ---- what stays in view

function fields(root, values) {
  for (const [name, value] of Object.entries(values)) text($(`${root} [data-field=${name}]`), value);
}

let shown = 0; // when texts were brought up to date
function texts(now) {
  if (now - shown < 100) return;
  shown = now;
  fields("#counter", {
    ids: count(view.ids), duplicates: count(view.duplicates), disorder: count(view.disorder), refused: count(view.refused), time: seconds(view.now),
    speed: finishing ? "fastest" : !playing ? "paused" : Math.abs(reached / speed - 1) > 0.15 ? `${speed}× (${reached.toFixed(1)}×)` : `${speed}×`,
  });
  $("#counter [data-field=duplicates]").parentElement.classList.toggle("bad", view.duplicates > 0);
  $("#counter [data-field=disorder]").parentElement.classList.toggle("bad", view.disorder > 0);
  fields("#facts", { seed: view.seed, mode: view.mode, event: count(view.event), hash: view.hash, acts: view.acts || "nothing" });
  document.body.dataset.over = view.over;
  document.body.dataset.playing = playing;
  text($("#play"), playing ? "Pause" : "Play");
  $("#play").disabled = view.over;
  const pace = finishing ? "" : String(speed);
  if ($("#speed").value !== pace) $("#speed").value = pace;
  $("#finish").hidden = view.mode === "calm" || Boolean(scene) || view.over;
  for (const card of $("#cards").children) {
    const n = view.nodes[card.dataset.node], [main, ...rest] = card.querySelectorAll("[data-line]");
    if (!n) {
      card.dataset.state = view.etcd.away ? "down" : "issuing";
      text(main, view.etcd.away ? "away" : "answers");
      text(rest[0], `revision ${count(view.etcd.revision)}, era ${view.etcd.era}`);
      text(rest[1], `no ID is issued any more below ${seconds(view.etcd.mark)}`);
      continue;
    }
    const [word, more] = state(n);
    card.dataset.state = word;
    text(main, [word, more, n.cut && "cut off from etcd", n.replay && "answers of etcd are lost", n.gossipCut && "no gossip"].filter(Boolean).join(", "));
    text(rest[0], n.up ? `${n.held ? `term ${n.term}, window to ${seconds(n.ceil)}` : n.phase}${n.problem ? `: ${n.problem}` : ""}` : "");
    text(rest[1], n.up ? `clock ${signed(n.off)} ± ${n.error === null ? "?" : span(n.error)}, wall clock ${signed(n.wall)}, ${n.gate}` : `wall clock ${signed(n.wall)}`);
  }
  $("#violations").hidden = view.violations.length === 0;
  if (view.violations.length !== $("#violations").children.length) {
    $("#violations").replaceChildren(...view.violations.map((v) => make("li", { textContent: `${v.claim}${v.at >= 0 ? ` at ${seconds(v.at)}` : ""}: ${v.detail}` })));
  }
  if ($("#log-section").open) text($("#log"), past.lines.slice(-40).join("\n"));
  alarm();
  if (view.over !== over) {
    over = view.over;
    guide();
  }
}
let over = false;

// broken is what must not be: the first duplicate; where there is none, at the end, a claim that did not hold.
const broken = () => view.twin ?? ((ended || view.over) && view.violations[0]) ?? null;

let told = false; // what is broken is shown
function alarm() {
  const found = loading ? null : broken();
  if (Boolean(found) === told) return;
  told = Boolean(found);
  $("#broken").hidden = !told;
  if (!told) return $("#broken").replaceChildren();
  const left = catalog.rules.find((r) => r.name === rule), parts = [];
  const holder = (h) => make("li", {}, make("code", { textContent: found.id }), ` by ${h.process} with sid ${h.sid}, at ${seconds(h.at)}`);
  if (found.id) parts.push(make("h2", { textContent: "The same ID twice" }), make("ul", {}, holder(found.a), holder(found.b)));
  else parts.push(make("h2", { textContent: `A claim does not hold: ${found.claim}` }), make("p", { textContent: found.detail }));
  if (left) {
    const link = make("a", { href: `${document.body.dataset.design}#${left.section}`, textContent: `docs/DESIGN.md, ${left.claim}` });
    parts.push(make("p", { textContent: `Left out: ${left.title}. What was broken:` }), make("blockquote", {}, left.sentence, " ", link));
    if (!found.id) parts.push(make("p", { textContent: "No ID came twice: uniqueness rests on no clock. What broke is that IDs are close to real time." }));
    parts.push(make("button", { textContent: "The same run with the rule", onclick: withRule }));
  } else {
    parts.push(make("p", { textContent: "No rule was left out. Is it outside of the promise? docs/DESIGN.md says what is. If not, it is a bug: the link of the page repeats it." }));
  }
  $("#broken").replaceChildren(...parts);
  $("#broken").scrollIntoView({ block: "nearest" });
  playing = finishing = false;
  guide();
}

// withRule plays the run that is shown again, with all that was done in it, by the program that has the rule.
async function withRule() {
  const same = { seed: view.seed, mode: view.mode, nodes: asMany(), sids, minutes, acts: view.acts };
  if (await begin(same, { withScene: scene })) start();
}

// guide shows the text of the scene, or what can be done.
function guide() {
  const next = $("#next"), leave = $("#leave"), last = catalog.scenes.indexOf(scene) + 1;
  let title = "Free play", says = "Choose a node and do something to it: kill it, pause it, set its clock. Duplicates stay 0, unless a node starts on a restored etcd before a new era begins. Or begin with a scene.";
  next.hidden = leave.hidden = true;
  next.textContent = "Go on";
  if (view.over) {
    title = view.mode === "calm" ? "The hour is over" : "The run is over";
    says = `The run ended after ${seconds(view.now)} of simulated time, with ${count(view.ids)} IDs, ${count(view.duplicates)} duplicates and ${count(view.violations.length)} violations. A new seed begins another one.`;
    next.hidden = false;
    next.textContent = "New seed";
  } else if (scene && rule) {
    title = catalog.rules.find((r) => r.name === rule).title;
    says = told ? "The rule was left out, and this is what follows." : ended ? "The scene is over. Play on." : `The rule is left out. The scene is played: ${scene.title}.`;
  } else if (scene) {
    title = scene.title;
    says = ended ? scene.then || "The run is over, and the rule held." : scene.steps[Math.max(0, stepAt)]?.text ?? "The same run, with the rule.";
    leave.hidden = false;
    next.hidden = ended && last >= catalog.scenes.length;
    if (ended) next.textContent = `Next: ${catalog.scenes[last]?.title}`;
    leave.textContent = ended ? "Now you" : "Free play";
  }
  text($("#guide-title"), title);
  text($("#guide-text"), says);
  for (const b of $("#scenes").children) b.setAttribute("aria-pressed", String(!rule && b.value === catalog.scenes[last - 1]?.name));
  for (const r of $("#rules").querySelectorAll("input")) r.checked = r.value === rule;
}

function goOn() {
  if (view.over) return begin({ seed: newSeed(), mode: view.mode, nodes: asMany() }).then((ok) => ok && start());
  if (ended) return playScene(catalog.scenes[catalog.scenes.indexOf(scene) + 1]);
  start();
}

function leaveScene() {
  pinned = null;
  scene = null;
  share();
  guide();
}

function free() {
  leaveScene();
  start();
}

// lists shows what the catalog has.
function lists() {
  catalog = JSON.parse(sim.catalog());
  $("#scenes").replaceChildren(...catalog.scenes.map((s, i) => make("button", { value: s.name, textContent: `${i + 1}. ${s.title}`, onclick: () => playScene(s) })));
  const radio = (value, title, note) => {
    const input = make("input", { type: "radio", name: "rule", value, checked: value === rule });
    input.onchange = () => leaveOut(value);
    return make("label", {}, input, make("span", {}, make("b", { textContent: title }), note ? ` ${note}` : ""));
  };
  $("#rules").replaceChildren(radio("", "None", ""), ...catalog.rules.map((r) => radio(r.name, r.title, `(${r.claim})`)));
}

function leaveOut(name) {
  const left = catalog.rules.find((r) => r.name === name);
  if (!left) return begin({ seed: newSeed(), mode: "calm", nodes: asMany() }).then((ok) => ok && start());
  return playScene(left.scene, name);
}

function cards() {
  const card = (number, name) => {
    const input = make("input", { type: "radio", name: "node", value: number, checked: number === chosen });
    input.onchange = () => choose(number);
    const line = () => { const s = make("span"); s.dataset.line = ""; return s; };
    const label = make("label", { className: "card" }, input, make("b", { textContent: name }), line(), line(), line());
    label.dataset.node = number;
    return label;
  };
  $("#cards").replaceChildren(...view.nodes.map((n, i) => card(i, n.name)), card(-1, "etcd"));
  choose(chosen);
}

// acts are what can be done: the kind with its arguments, what the button says, and its key.
const acts = {
  node: [
    ["kill:*:10s", "Kill, back after 10 s", "k"], ["pause:*:40s", "Pause for 40 s", "p"],
    ["step:*:60s", "Clock +60 s", "s"], ["step:*:-60s", "Clock −60 s", "S"], ["drift:*:500us", "Drift +500 µs/s", "d"], ["drift:*:-500us", "Drift −500 µs/s", "D"],
    ["fix:*:", "Set the clock right", "f"], ["cut:*:30s", "Cut from etcd for 30 s", "c"],
    ["replay:*:10s", "Lose answers of etcd, replay requests, 10 s", "r"], ["gossip:*:30s", "Cut from gossip for 30 s", "g"],
  ],
  etcd: [["etcd::30s", "Away for 30 s", "a"], ["restore::", "Restore a backup", "b"], ["recover::", "Begin a new era", "e"]],
};

function choose(number) {
  chosen = number;
  for (const input of $("#cards").querySelectorAll("input")) input.checked = Number(input.value) === number;
  $("#acts").setAttribute("aria-label", `What to do to ${number < 0 ? "etcd" : view.nodes[number].name}`);
  $("#acts").replaceChildren(...acts[number < 0 ? "etcd" : "node"].map(([kind, title, key]) => {
    const b = make("button", { value: kind, onclick: () => act(kind) }, title, " ", make("kbd", { textContent: key }));
    b.setAttribute("aria-keyshortcuts", key === key.toUpperCase() ? `Shift+${key}` : key);
    return b;
  }));
}

// fill shows the run in the form that begins another one.
function fill() {
  $("#seed").value = view.seed;
  $("#mode").value = view.mode;
  const nodes = String(view.nodes.length), count = $("#count");
  if (![...count.options].some((o) => o.value === nodes)) count.append(new Option(nodes));
  count.value = nodes;
}

// ---- the picture of the network

const network = $("#network"), turn = Math.PI * 2;
let colors = null, places = [];
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colors = null; });

function palette() {
  const style = getComputedStyle(network), of = (name) => style.getPropertyValue(`--${name}`).trim();
  colors = { font: style.fontFamily };
  for (const name of ["text", "muted", "line", "panel", "accent", "ok", "ok-fill", "ok-bg", "warn", "warn-fill", "bad", "bad-fill", "idle", "wait"]) colors[name] = of(name);
}

const tones = { issuing: "ok", refusing: "bad", paused: "warn", down: "muted", starting: "muted", standby: "muted" };

// deflection is the angle of a hand: logarithmic, since milliseconds and hours both occur.
const deflection = (ms) => Math.sign(ms) * Math.min(1, Math.log10(1 + Math.abs(ms) / 10) / Math.log10(1 + 3.6e5)) * turn * 0.42 - turn / 4;

function drawNetwork(passed) {
  if (!colors) palette();
  const ratio = devicePixelRatio || 1, wide = network.clientWidth, high = network.clientHeight;
  if (network.width !== Math.round(wide * ratio) || network.height !== Math.round(high * ratio)) {
    network.width = Math.round(wide * ratio);
    network.height = Math.round(high * ratio);
  }
  const c = network.getContext("2d"), nodes = view.nodes;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, wide, high);
  c.textAlign = "center";
  c.textBaseline = "middle";
  const many = nodes.length > 8, radius = many ? 8 : wide < 480 ? 24 : 36;
  const center = { x: wide / 2, y: high / 2 };
  places = nodes.map((_, i) => {
    const angle = turn * (i / nodes.length - 0.25), x = center.x + Math.cos(angle) * (wide / 2 - Math.min(wide / 6, 84));
    const beside = Math.abs(Math.cos(angle)) < 0.5; // Words are beside nodes above and below etcd, and else below them.
    const y = center.y + Math.sin(angle) * (high / 2 - radius - 8);
    return { x, y: beside ? y : Math.min(y, high - radius - (many ? 24 : 50)), beside };
  });
  places[-1] = center;

  c.lineWidth = 1;
  nodes.forEach((n, i) => {
    const p = places[i];
    c.strokeStyle = n.cut ? colors["bad-fill"] : colors.line;
    c.setLineDash(n.cut || view.etcd.away ? [4, 4] : []);
    segment(c, p, center);
    if (n.cut) label(c, "cut", (p.x + center.x) / 2, (p.y + center.y) / 2, colors.bad);
    c.setLineDash([1, 5]);
    c.strokeStyle = colors.idle;
    if (!many) for (let j = 0; j < i; j++) if (!n.gossipCut && !nodes[j].gossipCut && n.up && nodes[j].up) segment(c, p, places[j]);
    c.setLineDash([]);
  });
  drawDots(c, passed);
  drawEtcd(c, center);
  nodes.forEach((n, i) => drawNode(c, n, places[i], radius, i === chosen, many));
}

function segment(c, a, b) {
  c.beginPath();
  c.moveTo(a.x, a.y);
  c.lineTo(b.x, b.y);
  c.stroke();
}

function label(c, words, x, y, color, font = `12px ${colors.font}`) {
  c.font = font;
  const wide = c.measureText(words).width;
  x = Math.max(wide / 2 + 3, Math.min(network.clientWidth - wide / 2 - 3, x));
  c.fillStyle = colors.panel;
  c.globalAlpha = 0.8;
  c.fillRect(x - wide / 2 - 2, y - 7, wide + 4, 14);
  c.globalAlpha = 1;
  c.fillStyle = color;
  c.fillText(words, x, y);
}

function drawEtcd(c, at) {
  c.beginPath();
  c.roundRect(at.x - 44, at.y - 24, 88, 48, 8);
  c.fillStyle = colors.panel;
  c.fill();
  c.lineWidth = chosen < 0 ? 3 : 1.5;
  c.strokeStyle = chosen < 0 ? colors.accent : view.etcd.away ? colors["bad-fill"] : colors["ok-fill"];
  c.setLineDash(view.etcd.away ? [4, 4] : []);
  c.stroke();
  c.setLineDash([]);
  label(c, "etcd", at.x, at.y - 10, colors.text, `600 13px ${colors.font}`);
  label(c, view.etcd.away ? "away" : `era ${view.etcd.era}`, at.x, at.y + 9, view.etcd.away ? colors.bad : colors.muted);
}

function drawNode(c, n, at, radius, picked, many) {
  const [word, more] = state(n), tone = colors[tones[word]];
  c.beginPath();
  c.arc(at.x, at.y, radius, 0, turn);
  c.fillStyle = colors.panel;
  c.fill();
  c.lineWidth = 3;
  c.strokeStyle = tone;
  c.setLineDash(word === "issuing" ? [] : [5, 4]);
  c.stroke();
  c.setLineDash([]);
  if (picked) {
    c.lineWidth = 2;
    c.strokeStyle = colors.accent;
    c.beginPath();
    c.arc(at.x, at.y, radius + 5, 0, turn);
    c.stroke();
  }
  if (many) return label(c, n.name, at.x, at.y + 16, tone, `10px ${colors.font}`);
  c.strokeStyle = colors["ok-fill"]; // what is tolerated
  c.lineWidth = 2;
  c.beginPath();
  c.arc(at.x, at.y, radius - 5, deflection(-250), deflection(250));
  c.stroke();
  if (n.up) {
    c.fillStyle = colors.accent;
    c.globalAlpha = 0.25;
    c.beginPath();
    c.moveTo(at.x, at.y);
    c.arc(at.x, at.y, radius - 5, deflection(n.off - (n.error ?? Infinity)), deflection(n.off + (n.error ?? Infinity)));
    c.fill();
    c.globalAlpha = 1;
    hand(c, at, deflection(n.off), radius - 7, 3, colors.text);
  }
  hand(c, at, deflection(n.wall), radius * 0.55, 1.5, colors.muted);
  c.font = `12px ${colors.font}`;
  const aside = Math.max(...[n.name, word, more].map((t) => c.measureText(t).width)) / 2 + radius + 12; // beside the ring, whatever is said
  const x = at.x + (at.beside ? aside : 0), y = at.beside ? at.y - 14 : at.y + radius + 13;
  label(c, n.name, x, y, colors.text, `600 13px ${colors.font}`);
  label(c, word, x, y + 15, tone);
  label(c, more, x, y + 29, tone, `11px ${colors.font}`);
}

function hand(c, at, angle, length, width, color) {
  c.strokeStyle = color;
  c.lineWidth = width;
  segment(c, at, { x: at.x + Math.cos(angle) * length, y: at.y + Math.sin(angle) * length });
}

// drawDots moves messages. Most take a millisecond: a dot is in view for 0.4 s at least, of wall time.
function drawDots(c, passed) {
  const named = past.dots.length <= 8;
  for (const d of past.dots) {
    const a = places[d.n], b = places[d.to];
    const real = d.until > view.now ? Math.max(0, (view.now - d.t) / (d.until - d.t)) : 1;
    d.p = Math.min(real, d.p + passed / 400, d.lost ? 0.55 : 1);
    if (d.p >= (d.lost ? 0.55 : 1)) d.age += passed;
    if (!a || !b || a === b) continue;
    const part = calm.matches ? 0.5 : d.p; // reduced motion: nothing travels
    const x = a.x + (b.x - a.x) * part, y = a.y + (b.y - a.y) * part;
    const gossip = d.n >= 0 && d.to >= 0;
    c.globalAlpha = Math.max(0, 1 - d.age / (d.lost ? 700 : 150));
    c.fillStyle = c.strokeStyle = d.lost ? colors["bad-fill"] : gossip ? colors.wait : colors.accent;
    c.lineWidth = 2;
    if (d.lost && d.p >= 0.55) {
      segment(c, { x: x - 4, y: y - 4 }, { x: x + 4, y: y + 4 });
      segment(c, { x: x - 4, y: y + 4 }, { x: x + 4, y: y - 4 });
    } else {
      c.beginPath();
      c.arc(x, y, gossip ? 2 : 4, 0, turn);
      c.fill();
    }
    c.globalAlpha = 1;
    if (named && d.what && !gossip && part > 0.2 && part < 0.8) label(c, d.what, x, y - 12, colors.muted, `11px ${colors.font}`);
  }
  past.dots = past.dots.filter((d) => d.age < (d.lost ? 700 : 150));
}

// ---- the timeline

let width = 60e3;  // ms that it shows
let pinned = null; // the range that was chosen, while it does not follow
const timeline = new Timeline($("#timeline"), (from, to) => {
  width = Math.max(100, Math.min(kept, to - from));
  pinned = { from, to: from + width };
}, (words) => text($("#tip"), words));

// following is the range around now.
function following() {
  const from = Math.max(-width * 0.02, view.now - width * 0.65);
  return { from, to: from + width };
}

function drawTimeline() {
  const { from, to } = pinned ?? following();
  timeline.draw({ from, to, now: view.now, rows: past.rows, away: past.away });
  $("#follow").hidden = !pinned;
}

function zoom(factor) {
  width = Math.max(100, Math.min(kept, width * factor));
  if (pinned) {
    const middle = (pinned.from + pinned.to) / 2;
    pinned = { from: middle - width / 2, to: middle + width / 2 };
  }
}

// ---- frames

let last = 0, drawn = 0;
function frame(now) {
  requestAnimationFrame(frame);
  const passed = Math.min(100, now - last);
  last = now;
  if (!view) return;
  if (playing) {
    const before = view.now, rate = finishing || hurries() ? 1e6 : pace();
    advance(passed * rate);
    reached += ((view.now - before) / Math.max(1, passed) - reached) * 0.1;
  }
  texts(now);
  if (calm.matches && now - drawn < 500) return; // reduced motion: two pictures a second
  drawNetwork(calm.matches ? now - drawn : passed);
  drawTimeline();
  if (!drawn) performance.mark("first picture");
  drawn = now;
}

// pace is the speed. A scene is fast where nothing is to be read for long.
function pace() {
  if (!scene || ended) return speed;
  const gap = rule ? scene.ends - scene.from : limit() - (scene.steps[stepAt]?.at ?? 0);
  return speed * Math.max(1, gap / 8e3);
}

// ---- what is pressed

function faster(by) {
  speed = speeds[Math.max(0, Math.min(speeds.length - 1, speeds.indexOf(speed) + by))];
  $("#speed").value = speed;
}

function toggle() {
  if (playing) return play(false);
  if (scene && !ended && !rule) return goOn();
  start();
}

const keys = {
  " ": toggle, ".": () => stepOne(), ",": () => replay(view.event - 1), ArrowRight: () => on(1000), ArrowLeft: () => back(1000),
  ArrowUp: () => faster(1), ArrowDown: () => faster(-1), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => choose(-1),
};
for (let i = 1; i <= 9; i++) keys[i] = () => i <= view.nodes.length && choose(i - 1);

function stepOne() {
  play(false);
  call("step");
  if (scene && !ended && view.now >= limit()) arrive();
  shown = 0;
}

function connect() {
  $("#speed").replaceChildren(...speeds.map((s) => make("option", { value: s, textContent: `${s}×`, selected: s === speed })), make("option", { value: "", textContent: "fastest", hidden: true }));
  const press = (id, f) => { $(id).onclick = f; };
  press("#play", toggle);
  press("#step", stepOne);
  press("#back", keys[","]);
  press("#back-second", keys.ArrowLeft);
  press("#on-second", keys.ArrowRight);
  press("#finish", finish);
  press("#next", goOn);
  press("#leave", free);
  press("#zoom-in", keys["+"]);
  press("#zoom-out", keys["-"]);
  press("#earlier", () => {
    const from = (pinned ?? following()).from - width / 2;
    pinned = { from, to: from + width };
  });
  press("#follow", () => { pinned = null; });
  press("#new-seed", () => { $("#seed").value = newSeed(); $("#begin").requestSubmit(); });
  press("#copy", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link was copied.");
    } catch {
      say("The browser does not allow it: copy the address of the page.");
    }
  });
  $("#speed").onchange = (e) => { speed = Number(e.target.value); };
  $("#begin").onsubmit = (e) => {
    e.preventDefault();
    const options = { seed: $("#seed").value, mode: $("#mode").value, nodes: Number($("#count").value) };
    begin(options).then((ok) => ok && (options.mode === "calm" ? start() : finish()));
  };
  network.onclick = (e) => {
    const near = (p) => p && Math.hypot(p.x - e.offsetX, p.y - e.offsetY) < 46;
    for (let i = -1; i < view.nodes.length; i++) if (near(places[i])) return choose(i);
  };
  $("#act-keys").replaceChildren(...[...acts.node, ...acts.etcd].map(([, title, key]) => make("div", {}, make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: title }))));
  addEventListener("keydown", (e) => {
    if (!view || e.ctrlKey || e.metaKey || e.altKey || !$("#keys-on").checked) return;
    const field = e.target.closest("input, select, textarea, button, a, summary, pre");
    if (field?.matches("#seed, select, textarea")) return;
    if (field && (e.key === " " || (e.key.startsWith("Arrow") && field.matches("input, pre")))) return;
    const kind = acts[chosen < 0 ? "etcd" : "node"].find(([, , key]) => key === e.key)?.[0];
    const f = keys[e.key] ?? (kind && (() => act(kind)));
    if (!f) return;
    e.preventDefault();
    if (e.repeat && (e.key === "," || e.key === "ArrowLeft")) return; // Each plays the run again.
    f();
  });
  $(".skip").onclick = (e) => { // The address is the run's.
    e.preventDefault();
    $("#main").focus();
  };
  addEventListener("hashchange", () => { if (location.hash !== address) fromAddress(); });
}

addEventListener("DOMContentLoaded", async () => {
  clear();
  connect();
  requestAnimationFrame(frame);
  await fromAddress();
});
