"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// Elements are made here and nowhere else, and every text goes in as text: nothing in the data is ever markup.
function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const SVG = "http://www.w3.org/2000/svg";
function s(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const figure = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value >= 7200) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 120) return `${(value / 60).toFixed(1)} min`;
  return value >= 10 ? `${value.toFixed(1)} s` : value >= 0.01 || value === 0 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(1)} ms`;
};
const bytes = (value) => (value ? `${(value / 1048576).toFixed(0)} MiB` : "–");
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const WORDS = { success: "success", partial: "no success", failed: "failed" };

// A trial is a row of the data: [index, score, outcome, failure, message, seconds, attempts, has details]
const trials = [];
data.tasks.forEach((task, taskNumber) => task.trials.forEach((row) => trials.push({
  task: task.id, taskNumber, index: row[0], score: row[1], outcome: row[2], failure: row[3], message: row[4],
  seconds: row[5], attempts: row[6], number: trials.length,
})));
const numbers = new Map(trials.map((trial) => [`${trial.taskNumber}/${trial.index}`, trial.number]));
const nameOf = (trial) => `${trial.task}#${trial.index}`;

function top() {
  const facts = [data.run_name && `session ${data.session}`, data.model && `model ${data.model}`, data.created,
    data.wall_s !== null && `took ${seconds(data.wall_s)}`, plural(data.tasks.length, "task"), plural(data.planned, "trial")];
  byId("top").append(h("h1", {}, data.run_name || data.session), h("p.quiet", {}, facts.filter(Boolean).join(" · ")));
}

function interval(figures, bounds) {
  if (figures.low === null || figures.value === null) return null;
  const clamp = (value) => Math.max(0, Math.min(1, value)) * 200;
  const svg = s("svg", { class: "range", viewBox: "0 0 200 16", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(s("line", { x1: 0, x2: 200, y1: 8, y2: 8, class: "axis" }));
  if (bounds && bounds[1] > bounds[0]) svg.append(s("rect", { x: clamp(bounds[0]), width: clamp(bounds[1]) - clamp(bounds[0]), y: 3, height: 10, class: "opening", opacity: .5 }));
  svg.append(s("rect", { x: clamp(figures.low), width: Math.max(1, clamp(figures.high) - clamp(figures.low)), y: 6, height: 4, class: "bar", opacity: .55 }));
  svg.append(s("rect", { x: Math.min(197, clamp(figures.value)), width: 3, y: 1, height: 14, class: "bar" }));
  return svg;
}

function figures() {
  const cards = h("div.cards");
  const add = (name, value, bounds) => {
    if (!value) return;
    const open = bounds && bounds[1] - bounds[0] > 1e-12;
    cards.append(h("div.card", {},
      h("div.quiet", {}, name), h("div.big", {}, figure(value.value)), interval(value, bounds),
      h("div.small.quiet", {}, value.low === null ? "no interval: it needs two tasks" : `95 %: ${figure(value.low)} to ${figure(value.high)}`),
      open && h("div.small.quiet", {}, `not graded leave ${figure(bounds[0])} to ${figure(bounds[1])} open`)));
  };
  add("Average score", data.statistics.average_score, data.average_score_bounds);
  add("Success rate", data.statistics.success_rate);
  for (const [k, value] of Object.entries(data.statistics.pass_at_k)) if (k !== "1") add(`pass@${k}`, value, data.pass_at_k_bounds[k]);
  for (const [k, value] of Object.entries(data.statistics.pass_hat_k)) if (k !== "1") add(`pass^${k}`, value, data.pass_hat_k_bounds[k]);
  const lost = Object.entries(data.not_graded).map(([kind, count]) => `${count} ${kind}`).join(", ");
  cards.append(h("div.card", {}, h("div.quiet", {}, "Graded"), h("div.big", {}, `${data.graded} of ${data.planned}`),
    h("div.small.quiet", {}, lost ? `not graded: ${lost}` : "every planned trial")));
  byId("figures").append(cards);
  if (!data.complete) byId("figures").append(h("p.small.quiet", {}, "A trial that was not graded counts as 0. The grey band is what the figure could have been with them."));
}

function failing() {
  const found = trials.filter((trial) => trial.outcome === "failed");
  const wrong = trials.filter((trial) => trial.outcome === "partial");
  const section = byId("failing");
  if (!found.length && !wrong.length) return;
  section.hidden = false;
  const others = wrong.length ? h("p.small.quiet", {}, `${plural(wrong.length, found.length ? "more trial" : "trial")} ${wrong.length === 1 ? "was" : "were"} graded without success: `,
    h("button.link", { type: "button", onclick: () => only("partial") }, "show them")) : null;
  if (!found.length) {
    section.append(h("h2", { id: "failing-title" }, "Failures: none"), others);
    return;
  }
  const counts = new Map();
  for (const trial of found) counts.set(trial.failure || "failed", (counts.get(trial.failure || "failed") || 0) + 1);
  const body = h("tbody");
  const table = h("table.rows", {}, h("thead", {}, h("tr", {}, h("th", {}, "trial"), h("th", {}, "kind"), h("th", {}, "reason"))), body);
  const LIMIT = 12;
  let kind = "";
  const more = h("button.plain", { type: "button", onclick: () => draw(Infinity) });
  const draw = (limit) => {
    const shown = found.filter((trial) => !kind || (trial.failure || "failed") === kind);
    body.replaceChildren(...shown.slice(0, limit).map((trial) => h("tr", {},
      h("td.block", {}, h("button.link", { type: "button", onclick: () => show(trial.number, found) }, nameOf(trial))),
      h("td", {}, h("span.kind.failed", {}, trial.failure || "failed")), h("td.wide", {}, trial.message || ""))));
    more.hidden = shown.length <= limit;
    more.textContent = `Show all ${shown.length}`;
  };
  const pick = h("select", { "aria-label": "Kind of failure", onchange: (event) => { kind = event.target.value; draw(LIMIT); } },
    h("option", { value: "" }, `all kinds (${found.length})`),
    [...counts].sort().map(([name, count]) => h("option", { value: name }, `${name} (${count})`)));
  section.append(h("h2", { id: "failing-title" }, `Failures: ${plural(found.length, "trial")}`), ...(counts.size > 1 ? [h("div.tools", {}, pick)] : []), h("div.card.scroll", {}, table), more, ...(others ? [others] : []));
  draw(LIMIT);
}

// Show only those trials in the grid, and go there.
function only(outcome) {
  const menu = byId("outcomes");
  menu.value = outcome;
  menu.dispatchEvent(new Event("change"));
  byId("tasks").scrollIntoView();
  const first = byId("tasks").querySelector("button.cell");
  if (first) first.focus({ preventScroll: true });
}

function cellOf(trial, shown) {
  const text = trial.outcome === "failed" ? "✕" : trial.score === null ? "–" : Number.isInteger(trial.score) ? String(trial.score) : trial.score.toFixed(2).replace(/^0/, "");
  const label = `${nameOf(trial)}: ${WORDS[trial.outcome]}${trial.failure ? `, ${trial.failure}` : `, score ${figure(trial.score)}`}`;
  return h(`button.cell.${trial.outcome}`, { type: "button", title: label, ariaLabel: label, tabIndex: -1, onclick: () => show(trial.number, shown()) }, text);
}

function tasks() {
  const section = byId("tasks");
  const body = h("tbody");
  let shown = trials;
  const state = { text: "", outcome: "" };
  const passes = (trial) => !state.outcome || (state.outcome === "unsuccessful" ? trial.outcome !== "success" : trial.outcome === state.outcome);
  const draw = () => {
    shown = [];
    const rows = data.tasks.map((task, taskNumber) => {
      if (state.text && !task.id.toLowerCase().includes(state.text)) return null;
      const own = task.trials.map((row) => trials[numbers.get(`${taskNumber}/${row[0]}`)]).filter(passes);
      if (!own.length && (state.outcome || task.trials.length)) return null;
      shown.push(...own);
      const missing = state.outcome ? 0 : Math.min(200, task.planned - task.trials.length);
      return h("tr", {}, h("td.task-name.block", {}, task.id), h("td.num", {}, figure(task.average_score)),
        h("td.num.quiet.small", {}, task.interval[0] === null ? "" : `${figure(task.interval[0])} to ${figure(task.interval[1])}`),
        h("td.num", {}, `${task.successes} of ${task.planned}`),
        h("td.wide", {}, h("div.cells", {}, own.map((trial) => cellOf(trial, () => shown)), Array.from({ length: missing }, () => h("span.cell.missing", { title: "no record: the run was stopped" })))));
    }).filter(Boolean);
    body.replaceChildren(...(rows.length ? rows : [h("tr", {}, h("td.wide", { colSpan: 5 }, "No trial is like that."))]));
    const first = body.querySelector("button.cell");
    if (first) first.tabIndex = 0;
  };
  const keys = (event) => {
    const cell = event.target.closest && event.target.closest("button.cell");
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    const rowStep = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!cell || (step === undefined && rowStep === undefined)) return;
    event.preventDefault();
    const all = [...body.querySelectorAll("button.cell")];
    let next;
    if (step !== undefined) next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(cell) + step))];
    else {
      const rows = [...body.rows], own = [...cell.parentNode.children].indexOf(cell);
      const row = rows[rows.indexOf(cell.closest("tr")) + rowStep];
      const cells = row ? [...row.querySelectorAll("button.cell")] : [];
      next = cells[Math.min(own, cells.length - 1)];
    }
    if (next) { cell.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  };
  const count = (outcome) => trials.filter((trial) => trial.outcome === outcome).length;
  section.append(
    h("h2", { id: "tasks-title" }, "Tasks and trials"),
    h("div.tools", {},
      h("input", { type: "search", placeholder: "Task", ariaLabel: "Tasks whose name holds", oninput: (event) => { state.text = event.target.value.toLowerCase(); draw(); } }),
      h("select", { id: "outcomes", "aria-label": "Trials shown", onchange: (event) => { state.outcome = event.target.value; draw(); } },
        h("option", { value: "" }, "all trials"), h("option", { value: "unsuccessful" }, "all without success"),
        h("option", { value: "failed" }, `failed (${count("failed")})`), h("option", { value: "partial" }, `no success (${count("partial")})`), h("option", { value: "success" }, `success (${count("success")})`))),
    h("div.card.scroll", {}, h("table.rows", { onkeydown: keys }, h("thead", {}, h("tr", {}, h("th", {}, "task"), h("th.num", {}, "score"), h("th.num", {}, "95 %"), h("th.num", {}, "successes"), h("th", {}, "trials"))), body)),
    h("div.legend", {}, ["success", "partial", "failed"].map((outcome) => h("span", {}, h("i", { style: `background: var(--${{ success: "good", partial: "part", failed: "bad" }[outcome]}-soft)` }), outcome === "failed" ? "✕ failed: an error, a limit, or not graded" : outcome === "partial" ? "graded, no success" : "success: a score above 0")), h("span", {}, "Arrow keys move, Enter opens")));
  draw();
}

function histogram(title, values, low, high, form) {
  const bins = 20, width = 420, height = 130, counts = new Array(bins).fill(0);
  const span = high - low || 1;
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, Math.floor((value - low) / span * bins)))] += 1;
  const most = Math.max(1, ...counts), step = width / bins;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height + 36}`, width: "100%", role: "img", "aria-label": `${title}: ${values.length} values from ${form(low)} to ${form(high)}` });
  counts.forEach((count, bin) => {
    const tall = count / most * height;
    const bar = s("rect", { x: bin * step + 1, y: height + 14 - tall, width: step - 2, height: count ? Math.max(1, tall) : 0, class: "bar", rx: 2 });
    bar.append(s("title", {}, `${form(low + span * bin / bins)} to ${form(low + span * (bin + 1) / bins)}: ${count}`));
    svg.append(bar);
    if (count === most) svg.append(s("text", { x: bin * step + step / 2, y: height + 9 - tall, "text-anchor": "middle" }, String(count)));
  });
  svg.append(s("line", { x1: 0, x2: width, y1: height + 14, y2: height + 14, class: "axis" }), s("text", { x: 0, y: height + 31 }, form(low)), s("text", { x: width, y: height + 31, "text-anchor": "end" }, form(high)));
  return h("div.card", {}, h("h3", { style: "margin-top:0" }, title), svg);
}

function distributions() {
  const scores = trials.filter((trial) => trial.score !== null && trial.outcome !== "failed").map((trial) => trial.score);
  const times = trials.map((trial) => trial.seconds).filter((value) => value !== null);
  if (!trials.length) return;
  const smallest = scores.reduce((a, b) => Math.min(a, b), 0), largest = scores.reduce((a, b) => Math.max(a, b), 1);
  const parts = Object.entries(data.time).map(([name, part]) => [name, part.total_s]).filter(([name, total]) => name !== "queued" && total > 0);
  const sum = parts.reduce((total, [, part]) => total + part, 0);
  const colours = { configured: "var(--quiet)", agent: "var(--accent)", tools: "var(--tools)", scored: "var(--wait)" };
  byId("distributions").append(h("h2", { id: "distributions-title" }, "Distributions"), h("div.two", {},
    scores.length ? histogram("Score of the graded trials", scores, smallest, largest, (value) => value.toFixed(2)) : null,
    times.length ? histogram("Duration of a trial", times, 0, times.reduce((a, b) => Math.max(a, b), 0), seconds) : null),
    sum > 0 && h("div.card", { style: "margin-top:14px" }, h("h3", { style: "margin-top:0" }, "Where the time of the trials went"),
      h("div.stack", { role: "img", ariaLabel: parts.map(([name, part]) => `${name} ${seconds(part)}`).join(", ") }, parts.map(([name, part]) => h("span", { title: `${name}: ${seconds(part)}`, style: `flex: ${part / sum} 0 0; background: ${colours[name] || "var(--quiet)"}` }))),
      h("div.legend", {}, parts.map(([name, part]) => h("span", {}, h("i", { style: `background: ${colours[name] || "var(--quiet)"}` }), `${{ configured: "configure", scored: "scoring" }[name] || name} ${seconds(part)} (${Math.round(part / sum * 100)} %)`)),
        h("span", {}, `before that, in the queue: ${seconds(data.time.queued.mean_s)} on average`))));
}

function steps(points, length, x, y) {
  let path = `M${x(0)},${y(0)}`, level = 0;
  for (const [at, next] of points) { path += `L${x(at)},${y(level)}L${x(at)},${y(next)}`; level = next; }
  return `${path}L${x(length)},${y(level)}`;
}

function timeline() {
  const line = data.timeline, section = byId("timeline");
  if (!line.lanes.length) { section.hidden = true; return; }
  const labels = 84, tall = 20, chart = 64, axis = 24;
  const most = (points) => points.reduce((found, point) => Math.max(found, point[1]), 0);
  const mostWait = most(line.waiting), mostRun = most(line.running);
  let zoom = 1;
  const holder = h("div.lanes", { tabIndex: 0, role: "group", ariaLabel: "Timeline; scroll with the arrow keys" });
  const level = h("span.quiet.small", {}, "1×");
  const draw = () => {
    const width = Math.max(320, holder.clientWidth - 2) * zoom, height = chart + axis + line.lanes.length * tall + 6;
    const length = line.length || 1;
    const x = (at) => labels + at / length * (width - labels - 12);
    const svg = s("svg", { width, height, role: "img", "aria-label": `${line.lanes.length} lanes over ${seconds(length)}` });
    const y = (most) => (count) => chart - 6 - count / Math.max(1, most) * (chart - 18);
    svg.append(s("path", { d: `${steps(line.waiting, length, x, y(mostWait))}L${x(length)},${y(1)(0)}Z`, class: "waiting" }), s("path", { d: steps(line.running, length, x, y(mostRun)), class: "running" }));
    svg.append(s("text", { x: 4, y: 24 }, "waiting,"), s("text", { x: 4, y: 40 }, "running"));
    const rough = length / Math.max(2, Math.min(40, (width - labels) / 110)), power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough);
    for (let at = 0; at <= length; at += tick) {
      svg.append(s("line", { x1: x(at), x2: x(at), y1: chart, y2: height, class: "axis" }), s("text", { x: x(at), y: chart + 15, "text-anchor": at ? x(at) > width - 40 ? "end" : "middle" : "start" }, seconds(at)));
    }
    line.lanes.forEach((lane, row) => {
      const y0 = chart + axis + row * tall;
      svg.append(s("text", { x: 4, y: y0 + 14 }, lane.name));
      for (const [taskNumber, index, attempt, start, opened, end, outcome] of lane.spans) {
        const trial = trials[numbers.get(`${taskNumber}/${index}`)];
        if (opened > start) svg.append(s("rect", { x: x(start), y: y0 + 6, width: Math.max(.5, x(opened) - x(start)), height: tall - 13, class: "opening" }));
        const bar = s("rect", { x: x(opened), y: y0 + 2, width: Math.max(1, x(end) - x(opened) - .5), height: tall - 4, rx: 2, class: `span ${outcome}` });
        bar.append(s("title", {}, `${nameOf(trial)}${attempt > 1 || trial.attempts > 1 ? `, attempt ${attempt}` : ""}: ${WORDS[outcome]}\n${seconds(start)} to ${seconds(end)}, ${seconds(opened - start)} of it waiting for its environment`));
        bar.addEventListener("click", () => show(trial.number, trials));
        svg.append(bar);
        if (outcome === "failed") svg.append(s("line", { x1: x(end), x2: x(end), y1: y0, y2: y0 + tall, class: "restart" }));
      }
      for (const at of lane.restarts) svg.append(s("text", { x: x(at) - 5, y: y0 + 15, class: "renewed" }, "↻", s("title", {}, `${lane.name} got a new worker at ${seconds(at)}`)));
    });
    holder.replaceChildren(svg);
    level.textContent = `${zoom}×`;
  };
  const scale = (factor) => () => {
    const middle = (holder.scrollLeft + holder.clientWidth / 2) / zoom;
    zoom = Math.max(1, Math.min(64, zoom * factor));
    draw();
    holder.scrollLeft = middle * zoom - holder.clientWidth / 2;
  };
  section.append(h("h2", { id: "timeline-title" }, "Timeline"),
    h("div.tools", {}, h("button.plain", { type: "button", onclick: scale(2) }, "Zoom in"), h("button.plain", { type: "button", onclick: scale(.5) }, "Zoom out"), level), holder,
    h("div.legend", {}, [["good", "success"], ["part", "graded, no success"], ["bad", "failed, or an attempt that was repeated"], ["wait", "opening: waiting for the place and the environment"]].map(([name, text]) => h("span", {}, h("i", { style: `background: var(--${name})` }), text)), line.lanes.some((lane) => lane.restarts.length) && h("span", {}, "↻ the slot got a new worker"), h("span", {}, `Above, each on its own scale: the grey area waits (up to ${mostWait}), the line runs (up to ${mostRun})`)));
  draw();
  let due = 0;
  new ResizeObserver(() => { cancelAnimationFrame(due); due = requestAnimationFrame(() => { if (Math.abs(holder.clientWidth - 2 - (holder.firstChild.width.baseVal.value / zoom)) > 8) draw(); }); }).observe(holder);
}

const isEmpty = (value) => typeof value === "object" && !Object.keys(value).length;
const facts = (entries) => h("dl.facts", {}, entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && !isEmpty(value)).map(([name, value]) => [h("dt", {}, name), h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))]));

function run() {
  const metrics = Object.entries(data.metrics).map(([name, value]) => [name, value]);
  const pool = data.pool || {}, workers = Array.isArray(pool.workers) ? pool.workers : [];
  byId("run").append(h("h2", { id: "run-title" }, "The run"), h("div.two", {},
    h("div.card", {}, facts([["session", data.session], ["seed", data.seed === null || data.seed === undefined ? data.seed : String(data.seed)], ["journal", data.journal], ["peak memory of a trial", data.peak_rss && bytes(data.peak_rss)], ...Object.entries(data.token_usage).map(([name, value]) => [`tokens: ${name}`, value]), ...metrics.map(([name, value]) => [`metric ${name}`, value])])),
    h("div.card", {}, facts(Object.entries(data.settings)))),
    workers.length ? h("div.card.scroll", { style: "margin-top:14px" }, h("table", {}, h("thead", {}, h("tr", {}, ["slot", "pid", "trials", "restarts", "busy"].map((name) => h("th.num", {}, name)), h("th.wide"))),
      h("tbody", {}, workers.map((worker) => h("tr", {}, [worker.slot, worker.pid, worker.trials, worker.restarts, data.wall_s && worker.busy_s !== undefined ? `${Math.min(100, Math.round(worker.busy_s / data.wall_s * 100))} %` : "–"].map((value) => h("td.num", {}, value === null || value === undefined ? "–" : String(value))), h("td.wide")))))) : null);
}

// ---- one trial ----

const dialog = byId("trial");
let sequence = trials, position = 0, opener = null;

function show(number, among) {
  sequence = among && among.length ? among : trials;
  position = Math.max(0, sequence.findIndex((trial) => trial.number === number));
  if (!dialog.open) opener = document.activeElement;
  draw();
  if (!dialog.open) dialog.showModal();
}
const PRINTED = "Worker output";
const block = (title, text) => (text ? [h("h3", {}, title), h("pre", { tabIndex: 0 }, text)] : []);
function fold(title, content, open) { return content ? h("details", { open: Boolean(open) }, h("summary", {}, title), content) : null; }

function turn(item) {
  const [role, text, calls, tool, error] = item;
  return h(`div.turn.${role}${error ? ".error" : ""}`, {}, h("b", {}, role === "tool" ? `tool ${tool || ""}` : role),
    text && (role === "tool" ? h("pre", { tabIndex: 0 }, text) : h("div.text", {}, text)), error && h("pre", { tabIndex: 0 }, error),
    (calls || []).map(([name, args]) => h("pre", {}, `${name}(${args})`)));
}

// A message that stands above already is not said twice, nor is the output of a trial that ended well.
function attempt(item, known, brief) {
  const lines = [item.phase && `during ${item.phase}`, item.exit_status !== null && item.exit_status !== undefined && `exit status ${item.exit_status}`, item.worker && `slot ${item.worker.slot}, pid ${item.worker.trial_pid || item.worker.pid}`, `${seconds(item.seconds)}`, item.peak_rss && `peak ${bytes(item.peak_rss)}`, item.cpu_seconds && `CPU ${seconds(item.cpu_seconds)}`];
  return h("div", {}, h("h3", {}, `Attempt ${item.number}: `, h("span.kind" + (item.failure ? ".failed" : ""), {}, item.failure || "ended")), item.message && item.message !== known && h("p", {}, item.message), h("p.small.quiet", {}, lines.filter(Boolean).join(" · ")), block("Traceback", item.traceback), brief ? [] : block(PRINTED, item.output));
}

function draw() {
  const trial = sequence[position];
  const stored = byId(`t${trial.taskNumber}-${trial.index}`);
  const more = stored ? JSON.parse(stored.textContent) : null;
  const go = (by) => () => { position += by; draw(); };
  const broken = more && more.attempts.some((item) => item.failure);
  const printed = more && more.attempts.length ? more.attempts.at(-1).output : "";
  dialog.replaceChildren(
    h("div.bar-top", {}, h("h2", { id: "trial-title" }, nameOf(trial)), h(`span.kind.${trial.outcome}`, {}, trial.failure || WORDS[trial.outcome]),
      h("span.steps", {}, h("button.plain", { type: "button", disabled: position === 0, onclick: go(-1), ariaLabel: "Trial before" }, "‹"), h("span.small.quiet", {}, `${position + 1} of ${sequence.length}`),
        h("button.plain", { type: "button", disabled: position === sequence.length - 1, onclick: go(1), ariaLabel: "Next trial" }, "›"), h("button.plain", { type: "button", onclick: () => dialog.close() }, "Close"))),
    h("div.body", {},
      trial.message && h("p.why", {}, trial.message),
      h("p", {}, `Score ${figure(trial.score)} · ${seconds(trial.seconds)} · ${plural(trial.attempts, "attempt")}`),
      !more && h("p.note", {}, "The details of this trial are not in this page, which holds those of the first trials and of the failed ones: see the session's report.json."),
      more && [
        broken && more.attempts.map((item) => attempt(item, trial.message)),
        block("Answer", more.answer), block("Feedback of the scorer", more.feedback),
        more.warnings.length ? [h("h3", {}, "Warnings"), more.warnings.map((text) => h("p", {}, text))] : null,
        more.turns.length ? [h("h3", {}, "Transcript"), more.turns.map(turn)] : null,
        fold(`Tool calls (${more.calls.length})`, more.calls.length && h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "tool"), h("th.num", {}, "time"), h("th", {}, "arguments and result"))), h("tbody", {}, more.calls.map(([name, ok, time, text]) => h("tr", {}, h("td", {}, name), h("td.num", {}, seconds(time)), h("td.wide", {}, ok ? "" : h("span.kind.failed", {}, "failed"), " ", text)))))), !more.turns.length),
        !broken && printed && fold(PRINTED, h("pre", { tabIndex: 0 }, printed), true),
        fold("Time, memory, tokens", facts([...Object.entries(more.time).map(([name, value]) => [name, seconds(value)]), ...Object.entries(more.tokens)])),
        !broken && fold("Attempts", more.attempts.length && h("div", {}, more.attempts.map((item) => attempt(item, null, item === more.attempts.at(-1))))),
        fold("State at the end", more.state && h("pre", { tabIndex: 0 }, more.state))]));
  dialog.scrollTop = 0;
  history.replaceState(null, "", `#${encodeURIComponent(nameOf(trial))}`);
}
dialog.addEventListener("close", () => { history.replaceState(null, "", location.pathname + location.search); if (opener && opener.focus) opener.focus(); });
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("keydown", (event) => {
  if (event.target.closest("pre, input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by && sequence[position + by]) { position += by; draw(); dialog.focus(); }
});

top(); figures(); failing(); tasks(); distributions(); timeline(); run();
const wanted = decodeURIComponent(location.hash.slice(1));
const linked = wanted && trials.find((trial) => nameOf(trial) === wanted);
if (linked) show(linked.number, trials);
document.documentElement.dataset.ready = "yes";
})();
