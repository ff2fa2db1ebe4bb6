// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { chart, spark } from "./chart.js";
import { Stream, ask, getToken, setToken, tell } from "./stream.js";
import { Table } from "./table.js";
import { clock, day, el, fill, inTime, known, moment, num, percent, plural, setText, span } from "./text.js";

const $ = (id) => document.getElementById(id);

// Items from the server, by kind and key. A new stream fills next until it is complete, so the
// page keeps showing data meanwhile.
const kinds = ["task", "node", "gpu", "move", "done", "ended"];
const empty = () => ({ head: null, single: {}, ...Object.fromEntries(kinds.map((k) => [k, new Map()])) });
let data = empty();
let next = null;
let pageID = "";

function take(event, message) {
  if (event === "hello") {
    next = empty();
    pageID = message.id;
    told = "";
    return;
  }
  if (event !== "frame") return;
  const into = next ?? data;
  for (const key of message.gone) {
    const at = key.indexOf(":");
    into[key.slice(0, at)]?.delete(key.slice(at + 1));
  }
  for (const [key, value] of message.set) {
    const at = key.indexOf(":");
    if (at < 0) {
      into.single[key] = value;
      continue;
    }
    value.key = key.slice(at + 1);
    if (key.startsWith("task:")) {
      value.words = [value.namespace, value.job, value.group, value.task, value.alloc, value.node, value.state, value.metric, value.rule].join("\n").toLowerCase();
    }
    into[key.slice(0, at)]?.set(value.key, value);
  }
  into.head = message.head;
  if (message.more) return;
  if (next) {
    data = next;
    next = null;
  }
  live(true, "Live");
  later();
}

// Connection state.
function live(ok, text) {
  const e = $("live");
  e.className = ok ? "ok" : "off";
  setText(e, text);
}

const stream = new Stream(take, (error) => {
  switch (error.status) {
    case 401:
      live(false, "Token required");
      askToken();
      break;
    case 403:
      live(false, "Refused");
      forget();
      askToken(error.message);
      break;
    default:
      live(false, "Not connected");
      notice([["error", `Not connected: ${error.message}. The data shown may be out of date.`]]);
  }
});

/** Clears the page: another token may not be allowed to read its data. */
function forget() {
  data = empty();
  next = null;
  detail = null;
  later();
}

// Drawing: at most once per frame.
let wanted = false;
function later() {
  if (wanted) return;
  wanted = true;
  requestAnimationFrame(() => {
    wanted = false;
    draw();
  });
}

const now = () => (data.head ? Date.parse(data.head.time) : Date.now());

function notice(all) {
  fill($("notices"), all, () => all.map(([cls, text]) => el("p", `notice ${cls}`, text)));
}

function draw() {
  const h = data.head;
  $("totals").hidden = !h;
  setText($("updated"), h ? clock(h.time) : "");
  if (h) {
    const all = h.error ? [["error", h.error]] : [];
    for (const n of h.notes ?? []) all.push(["", n]);
    if (h.empty && !h.error) all.push(["", h.empty]);
    notice(all);
    totals(h);
  }
  views[view]?.();
}

function totals(h) {
  const t = h.totals;
  const of = (c) => t.categories?.[c] ?? 0;
  const all = [
    ["Nodes", t.nodes.toLocaleString("en"), t.stale_nodes ? `${t.stale_nodes} stale` : ""],
    ["CPU", t.cores ? percent(t.used_cores / t.cores) : "–", t.cores ? `of ${num(t.cores)} cores` : ""],
    ["Tasks", t.tasks.toLocaleString("en"), [t.late ? `${t.late} late` : "", h.unread ? `${h.unread} not read yet` : ""].filter(Boolean).join(", ")],
    ["Growing, watched, completing", `${of("NL")} / ${of("WL")} / ${of("CL")}`, "", "mid"],
    ["Time saved", span(t.saved_s), ""],
    ["Moves in progress", String(data.move.size), "", "mid"],
  ];
  fill($("totals"), all, () => all.map(([name, value, more, cls]) => el("div", cls ?? "", el("dt", "", name), el("dd", "", value, more ? " " : "", more ? el("small", "", more) : ""))));
}

// Cells.
const text = (value) => (row, cell) => setText(cell, value(row) || "–");
const full = (value) => (row, cell) => {
  const said = value(row) || "–";
  setText(cell, said);
  if (cell.title !== said) cell.title = said;
};
const states = {
  late: "it would have ended by now with its fair share", stale: "cannot be read now", move: "being moved", NL: "growing", WL: "watched", CL: "completing",
  G: "faster than its target", S: "meets its target", B: "slower than its target", parked: "its GPU memory is in host memory", yielding: "others come first on its GPU",
  waiting: "waiting for GPU memory", lost: "its GPU memory is lost",
};
const tone = (state) => (["late", "lost", "B"].includes(state) ? "bad" : ["stale", "waiting", "parked", "yielding", "move"].includes(state) ? "warn" : "");
function stateCell(row, cell) {
  fill(cell, row.state, () => {
    const tag = el("span", `tag ${tone(row.state)}`, row.state);
    tag.title = states[row.state] ?? "unknown";
    return [tag];
  });
}
const link = (href, name) => {
  const a = el("a", "", name);
  a.href = href;
  return a;
};
const taskRef = (r) => `#/task/${encodeURIComponent(r.alloc)}/${encodeURIComponent(r.task)}`;
const jobName = (r) => (r.namespace && r.namespace !== "default" ? `${r.namespace}/${r.job}` : r.job);
const taskName = (r) => (r.task && r.task !== r.job ? `${jobName(r)} ${r.task}` : jobName(r));
function taskCell(row, cell) {
  fill(cell, [taskName(row), taskRef(row)], () => {
    const a = link(taskRef(row), taskName(row));
    a.title = `${row.namespace}/${row.job}, group ${row.group}, task ${row.task}, allocation ${row.alloc}`;
    return [a];
  });
}
const value = (r) => (r.service ? `${num(r.value)} of ${num(r.target)} s` : r.diverged ? `diverged ${r.metric ?? ""}` : known(r.value) ? `${num(r.value)} ${r.metric ?? ""}` : (r.metric ?? ""));
const gapText = (s) => (known(s) && Math.abs(s) < 1e9 ? (s >= 1 ? "+" : "") + span(s) : "–");
function gapCell(row, cell) {
  setText(cell, gapText(row.gap_s));
  cell.classList.toggle("good", row.gap_s <= -1);
  cell.classList.toggle("bad", row.gap_s >= 1);
}
function cpuCell(row, cell) {
  fill(cell, [row.use, row.limit], () => {
    const use = el("i");
    use.style.width = `${Math.min(100, 100 * (row.use || 0))}%`;
    const limit = el("b");
    limit.style.left = `calc(${Math.min(100, 100 * (row.limit ?? 1))}% - 1px)`;
    const gauge = el("span", "gauge wide", use, limit);
    gauge.setAttribute("aria-hidden", "true");
    const whole = (n) => (known(n) ? Math.round(100 * n) : "–");
    return [gauge, el("span", "pair", `${whole(row.use)} / ${whole(row.limit)} %`)];
  });
}
function curveCell(row, cell) {
  fill(cell, row.values ?? [], () => ((row.values?.length ?? 0) > 1 ? [spark(row.values)] : []));
}
const time = (t) => (t ? Date.parse(t) : NaN);

const tables = {};
tables.tasks = new Table($("tasks"), {
  label: "Tasks", cls: "tall", sort: "job", key: (r) => r.key, empty: "No tasks.", faint: (r) => r.stale,
  onVisible: see,
  columns: [
    { key: "job", title: "Job", cls: "w16", sort: (r) => `${r.namespace}/${r.job}/${r.task}`, cell: taskCell },
    { key: "node", title: "Node", cls: "w8 wide", sort: (r) => r.node, cell: full((r) => r.node) },
    { key: "state", title: "State", cls: "w6", sort: (r) => r.state, cell: stateCell },
    { key: "metric", title: "Metric", cls: "w12", sort: (r) => r.value ?? NaN, cell: full(value) },
    { key: "curve", title: "Curve", cls: "w8 mid", sort: (r) => r.values?.length ?? 0, cell: curveCell },
    { key: "step", title: "Steps", cls: "w7 num mid", hint: "Share of its steps that are done", sort: (r) => r.step / r.total, cell: (r, c) => {
      setText(c, known(r.step) ? (known(r.total) ? percent(r.step / r.total) : num(r.step)) : "–");
    } },
    { key: "end", title: "End", cls: "w7 num", hint: "Expected end", sort: (r) => time(r.finish), cell: (r, c) => setText(c, inTime(r.finish, now())) },
    { key: "gap", title: "vs fair", cls: "w8 num mid", hint: "Expected end compared with its fair share: earlier (−) or later (+)", sort: (r) => r.gap_s ?? NaN, cell: gapCell },
    { key: "cpu", title: "CPU / limit", cls: "w12 num mid", hint: "CPU used and limit, as percentages of the node's pool", sort: (r) => r.use ?? NaN, cell: cpuCell },
    { key: "why", title: "Why", cls: "wide", hint: "Reason for its limit", sort: (r) => r.rule, cell: full((r) => r.error || r.why || r.rule) },
  ],
});
tables.nodes = new Table($("nodes"), {
  label: "Nodes", cls: "tall", sort: "name", key: (r) => r.key, empty: "No nodes.", faint: (r) => r.stale,
  columns: [
    { key: "name", title: "Node", cls: "w12", sort: (r) => r.name, cell: (r, c) => fill(c, [r.name, r.id], () => [link(`#/policies/${encodeURIComponent(r.id)}`, r.name || r.id)]) },
    { key: "state", title: "State", cls: "w8", sort: (r) => r.state, cell: (r, c) => {
      setText(c, r.stale && r.state === "ready" ? "stale" : r.state);
      c.title = r.error ?? "";
    } },
    { key: "pool", title: "Pool", cls: "w6 num", hint: "Cores shared by tasks", sort: (r) => r.pool_cores ?? NaN, cell: text((r) => num(r.pool_cores)) },
    { key: "use", title: "Use", cls: "w6 num", sort: (r) => r.use ?? NaN, cell: text((r) => percent(r.use)) },
    { key: "tasks", title: "Tasks", cls: "w6 num", sort: (r) => r.tasks, cell: text((r) => String(r.tasks)) },
    { key: "kinds", title: "NL / WL / CL", cls: "w8 num mid", hint: "Growing, watched, completing", sort: (r) => r.categories?.NL ?? 0, cell: text((r) => ["NL", "WL", "CL"].map((k) => r.categories?.[k] ?? 0).join(" / ")) },
    { key: "services", title: "G / S / B", cls: "w7 num wide", hint: "Services: faster than their targets, at them, slower", sort: (r) => r.classes?.B ?? 0, cell: text((r) => ["G", "S", "B"].map((k) => r.classes?.[k] ?? 0).join(" / ")) },
    { key: "saved", title: "Saved", cls: "w7 num", hint: "How much earlier tasks ended than with their fair shares", sort: (r) => r.saved_s ?? NaN, cell: text((r) => span(r.saved_s)) },
    { key: "left", title: "Left", cls: "w7 num mid", hint: "Time the pool needs for the known remaining work", sort: (r) => r.remaining_cpu_s / r.pool_cores, cell: text((r) => (known(r.remaining_cpu_s) ? span(r.remaining_cpu_s / r.pool_cores) : "–")) },
    { key: "policy", title: "Policy", cls: "w6 mid", sort: (r) => r.policy, cell: text((r) => r.policy) },
    { key: "engine", title: "Engine", cls: "w6 wide", sort: (r) => r.engine, cell: text((r) => r.engine) },
    { key: "dc", title: "Datacenter", cls: "w8 wide", sort: (r) => r.datacenter, cell: full((r) => r.datacenter) },
    { key: "version", title: "Version", cls: "w8 wide", sort: (r) => r.version, cell: full((r) => r.version) },
  ],
});
const mib = (key, name, hint) => ({ key, title: name, cls: "w7 num mid", hint, sort: (r) => r[key], cell: text((r) => r[key].toLocaleString("en")) });
tables.gpus = new Table($("gpus"), {
  label: "Tasks on shared GPUs", cls: "tall", sort: "card", key: (r) => r.key, empty: "No task uses a shared GPU.",
  columns: [
    { key: "card", title: "Card", cls: "w12", sort: (r) => `${r.node} ${r.uuid}`, cell: full((r) => `${r.node} ${r.model} ${r.uuid}`) },
    { key: "job", title: "Job", cls: "w12", sort: (r) => r.job, cell: taskCell },
    { key: "state", title: "State", cls: "w6", sort: (r) => r.state, cell: stateCell },
    mib("held_mib", "Held", "GPU memory granted, in MiB"), mib("share_mib", "Share", "GPU memory it is entitled to, in MiB"), mib("used_mib", "Used", "GPU memory in use, in MiB"),
    mib("parked_mib", "Parked", "Memory moved to the host, in MiB"), mib("waiting_mib", "Waiting", "Memory requested and not granted yet, in MiB"),
    { key: "why", title: "Why", cls: "w20 wide", sort: (r) => r.why, cell: full((r) => r.why) },
  ],
});
tables.moves = new Table($("moves"), {
  label: "Moves in progress", sort: "job", key: (r) => r.key, empty: "None.",
  columns: [
    { key: "job", title: "Job", cls: "w16", sort: (r) => jobName(r), cell: full(jobName) },
    { key: "from", title: "From", cls: "w10", sort: (r) => r.from, cell: full((r) => r.from) },
    { key: "to", title: "To", cls: "w10", sort: (r) => r.to, cell: full((r) => r.to) },
    { key: "phase", title: "Phase", cls: "w8", sort: (r) => r.phase, cell: text((r) => r.phase) },
    { key: "until", title: "Until", cls: "w7 num mid", sort: (r) => time(r.until), cell: (r, c) => setText(c, inTime(r.until, now())) },
    { key: "why", title: "Why", cls: "mid", sort: (r) => r.why, cell: full((r) => r.why || "–") },
    { key: "owner", title: "Owner", cls: "w12 wide", sort: (r) => r.owner, cell: full((r) => r.owner) },
  ],
});
const result = (r) => (r.Error ? `failed at ${r.Phase}` : r.DryRun ? "dry run" : "moved");
tables.done = new Table($("done"), {
  label: "Completed moves", sort: "-time", key: (r) => r.key, empty: "None.",
  columns: [
    { key: "time", title: "Time", cls: "w12", sort: (r) => time(r.Time), cell: text((r) => moment(r.Time)) },
    { key: "job", title: "Job", cls: "w12", sort: (r) => r.Job, cell: full((r) => jobName({ namespace: r.Namespace, job: r.Job })) },
    { key: "way", title: "From → to", cls: "w12 mid", sort: (r) => r.From, cell: full((r) => `${r.From || "–"} → ${r.To || "–"}`) },
    { key: "policy", title: "Policy", cls: "w9 wide", sort: (r) => r.Policy, cell: full((r) => r.Policy) },
    { key: "result", title: "Result", cls: "w7", sort: result, cell: (r, c) => {
      setText(c, result(r));
      c.classList.toggle("bad", Boolean(r.Error));
    } },
    { key: "down", title: "Downtime", cls: "w7 num mid", sort: (r) => Number(r.DownS || NaN), cell: text((r) => (r.DownS ? span(Number(r.DownS)) : "–")) },
    { key: "why", title: "Why", cls: "mid", sort: (r) => r.Why, cell: full((r) => [r.Why, r.Error].filter(Boolean).join("; ")) },
  ],
});
tables.refused = new Table($("refused"), {
  label: "Jobs not moved", sort: "job", key: (r) => r.key, empty: "None.",
  columns: [
    { key: "job", title: "Job", cls: "w16", sort: jobName, cell: full(jobName) },
    { key: "text", title: "Reason", cls: "", sort: (r) => r.text, cell: full((r) => r.text) },
  ],
});
tables.queue = new Table($("queue"), {
  label: "Queue", sort: "no", key: (r) => r.key, empty: "No jobs.",
  columns: [
    { key: "no", title: "No", cls: "w5 num", hint: "Those that wait, in the order in which they get their places", sort: (r) => r.number ?? Infinity, cell: text((r) => (r.node ? "–" : String(r.number))) },
    { key: "job", title: "Job", cls: "w16", sort: jobName, cell: (r, c) => fill(c, [jobName(r), r.ref], () => [r.ref ? link(r.ref, jobName(r)) : jobName(r)]) },
    { key: "owner", title: "Owner", cls: "w8 mid", sort: (r) => r.owner, cell: full((r) => r.owner) },
    { key: "priority", title: "Priority", cls: "w7 num wide", hint: "Among its owner's jobs, or an operator's order: hold or top", sort: (r) => r.priority ?? 0, cell: text((r) => r.order || String(r.priority ?? 0)) },
    { key: "node", title: "Node", cls: "w8", sort: (r) => r.node, cell: full((r) => r.node || "waits") },
    { key: "start", title: "Start", cls: "w8 num", hint: "Expected, if no other job comes", sort: (r) => (r.node ? 0 : time(r.start)), cell: text((r) => (r.node ? "–" : inTime(r.start, now()))) },
    { key: "end", title: "End", cls: "w8 num", hint: "Expected, if no other job comes", sort: (r) => time(r.end), cell: text((r) => inTime(r.end, now())) },
    { key: "fair", title: "Fair end", cls: "w8 num", hint: "End with its fair share of the cluster", sort: (r) => (r.late ? 0 : time(r.fair_end)), cell: (r, c) => {
      setText(c, r.late ? "late" : inTime(r.fair_end, now()));
      c.classList.toggle("bad", r.late);
    } },
    { key: "why", title: "Why", cls: "mid", sort: (r) => r.why, cell: full((r) => r.why) },
  ],
});
tables.owners = new Table($("owners"), {
  label: "Owners in the queue", cls: "narrow", sort: "-use", key: (r) => r.name, empty: "None.",
  columns: [
    { key: "name", title: "Owner", cls: "w12", sort: (r) => r.name, cell: full((r) => r.name) },
    { key: "weight", title: "Weight", cls: "w7 num", hint: "Its part of the cluster relative to the others', by the shim's configuration", sort: (r) => r.weight, cell: text((r) => num(r.weight)) },
    { key: "use", title: "Use", cls: "w7 num", hint: "The part of the cluster that its running jobs have", sort: (r) => r.use, cell: text((r) => percent(r.use)) },
    { key: "share", title: "Share", cls: "w7 num", hint: "Its fair share of the cluster now; late jobs have had theirs", sort: (r) => r.share, cell: text((r) => percent(r.share)) },
    { key: "running", title: "Running", cls: "w7 num", sort: (r) => r.running, cell: text((r) => String(r.running)) },
    { key: "waiting", title: "Waiting", cls: "w7 num", sort: (r) => r.waiting, cell: text((r) => String(r.waiting)) },
  ],
});
tables.days = new Table($("days"), {
  label: "Time saved per day", cls: "narrow", sort: "-day", key: (r) => r.day, empty: "No finished tasks to compare.",
  columns: [
    { key: "day", title: "Day", cls: "w10", sort: (r) => r.day, cell: text((r) => r.day) },
    { key: "saved", title: "Saved", cls: "w10 num", sort: (r) => r.saved, cell: savedCell },
    { key: "tasks", title: "Finished tasks", cls: "w8 num", sort: (r) => r.tasks, cell: text((r) => String(r.tasks)) },
    { key: "slowed", title: "Slowed", cls: "w8 num", sort: (r) => r.slowed, cell: text((r) => String(r.slowed)) },
  ],
});
tables.jobs = new Table($("jobs"), {
  label: "Time saved per job", cls: "narrow", sort: "-saved", key: (r) => r.name, empty: "No finished tasks to compare.",
  columns: [
    { key: "job", title: "Job", cls: "w16", sort: (r) => r.name, cell: full((r) => r.name) },
    { key: "saved", title: "Saved", cls: "w8 num", sort: (r) => r.saved, cell: savedCell },
    { key: "part", title: "Saved, %", cls: "w7 num", sort: (r) => r.saved / r.fair, cell: text((r) => percent(r.saved / r.fair)) },
    { key: "runs", title: "Runs", cls: "w6 num mid", sort: (r) => r.tasks, cell: text((r) => String(r.tasks)) },
    { key: "took", title: "Took", cls: "w8 num mid", sort: (r) => r.took, cell: text((r) => span(r.took)) },
    { key: "fair", title: "With fair share", cls: "w9 num mid", sort: (r) => r.fair, cell: text((r) => span(r.fair)) },
  ],
});
tables.slowed = new Table($("slowed"), {
  label: "Slowed tasks", sort: "-by", key: (r) => r.name + r.when, empty: "None.",
  columns: [
    { key: "job", title: "Job", cls: "w16", sort: (r) => r.name, cell: (r, c) => (r.ref ? fill(c, [r.name, r.ref], () => [link(r.ref, r.name)]) : fill(c, r.name, () => [r.name])) },
    { key: "by", title: "Delay", cls: "w8 num", sort: (r) => r.by, cell: text((r) => span(r.by)) },
    { key: "when", title: "Ended", cls: "w12 mid", sort: (r) => r.when, cell: text((r) => r.when) },
    { key: "why", title: "Why", cls: "", sort: (r) => r.why, cell: full((r) => r.why) },
  ],
});
function savedCell(row, cell) {
  setText(cell, span(row.saved));
  cell.classList.toggle("good", row.saved >= 1);
  cell.classList.toggle("bad", row.saved <= -1);
}

// Views.
let view = "tasks";
let detail = null; // {alloc, task, answer}
const views = {
  tasks() {
    const all = [...data.task.values()];
    const names = [...new Set(all.map((r) => r.namespace))].sort();
    const chosen = $("namespace").value;
    fill($("namespace"), names, () => ["", ...names].map((n) => {
      const o = el("option", "", n || "all");
      o.value = n;
      o.selected = n === chosen;
      return o;
    }));
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = all.filter((r) => (!chosen || r.namespace === chosen) && words.every((w) => r.words.includes(w)));
    setText($("shown"), rows.length === all.length ? plural(rows.length, "task") : `${rows.length.toLocaleString("en")} of ${plural(all.length, "task")}`);
    tables.tasks.set(rows);
  },
  task: drawTask,
  nodes() {
    tables.nodes.set([...data.node.values()]);
  },
  gpus() {
    const rows = [];
    for (const g of data.gpu.values()) {
      for (const s of g.seats ?? []) rows.push({ ...s, key: `${g.key}/${s.alloc}/${s.task}`, group: "", node: g.node, model: g.model, uuid: g.uuid });
    }
    tables.gpus.set(rows);
  },
  moves() {
    const s = data.single.shim;
    fill($("shim"), s ?? null, () => {
      if (!s) return ["Reading the shim's report…"];
      if (s.error) return [`The shim's report cannot be read: ${s.error}`];
      if (!s.leader && !s.report) return ["No shim has run in this cluster, so jobs move only on request."];
      const said = [];
      if (s.leader) said.push(`${s.leader.leads ? "leader" : "last leader"}: ${s.leader.holder}, since ${moment(s.leader.since)}`);
      if (s.pause && (!s.pause.until || time(s.pause.until) > now())) said.push(`paused by ${s.pause.by}${s.pause.why ? ": " + s.pause.why : ""}`);
      if (s.report?.suspended) said.push(`no move may start: ${s.report.suspended}`);
      if (s.report?.dry_run) said.push("dry run: moves are logged, not made");
      if (s.report) said.push(`${s.report.in_flight} of ${s.report.in_flight_max} moves in progress, ${s.report.started} of ${s.report.started_max} started within a minute`);
      if (s.report?.held?.length) said.push(`held for placement: ${s.report.held.join(", ")}`);
      if (s.report?.reasons_omitted) said.push(`${s.report.reasons_omitted} more jobs are in its log`);
      return [`${said.join("; ")}.`];
    });
    tables.moves.set([...data.move.values()]);
    tables.done.set([...data.done.values()]);
    const off = s?.report?.queue_off ?? "";
    const tasks = new Map([...data.task.values()].map((r) => [jobName(r), taskRef(r)]));
    const queue = (s?.report?.queue ?? []).map((r) => ({ ...r, key: `${r.namespace}/${r.job}`, ref: r.node ? tasks.get(jobName(r)) : undefined }));
    $("queue-part").hidden = !off && queue.length === 0;
    $("queue-off").hidden = !off;
    setText($("queue-off"), off);
    tables.queue.set(queue);
    const owners = s?.report?.owners ?? [];
    $("owners-part").hidden = owners.length < 2;
    tables.owners.set(owners);
    tables.refused.set((s?.report?.reasons ?? []).map((r) => ({ ...r, key: `${r.namespace}/${r.job}` })));
  },
  saved() {
    const ended = [...data.ended.values()];
    const days = new Map();
    const jobs = new Map();
    const add = (into, name, fields, e) => {
      const sum = into.get(name) ?? { ...fields, tasks: 0, slowed: 0, saved: 0, took: 0, fair: 0 };
      sum.tasks++;
      sum.saved += e.fair_s - e.took_s;
      sum.took += e.took_s;
      sum.fair += e.fair_s;
      if (e.took_s > e.fair_s) sum.slowed++;
      into.set(name, sum);
    };
    let oldest = "";
    for (const e of ended) {
      add(days, day(e.time), { day: day(e.time) }, e);
      add(jobs, jobName(e), { name: jobName(e) }, e);
      if (!oldest || e.time < oldest) oldest = e.time;
    }
    tables.days.set([...days.values()]);
    tables.jobs.set([...jobs.values()]);
    const running = [...data.task.values()].filter((r) => r.late || r.gap_s >= 1);
    tables.slowed.set([
      ...running.map((r) => ({ name: taskName(r), ref: taskRef(r), by: known(r.gap_s) ? r.gap_s : NaN, when: "still running", why: r.why })),
      ...ended.filter((e) => e.took_s > e.fair_s).map((e) => ({ name: taskName(e), by: e.took_s - e.fair_s, when: moment(e.time), why: e.why })),
    ]);
    const ahead = [...data.task.values()].reduce((sum, r) => sum + (known(r.gap_s) && Math.abs(r.gap_s) < 1e9 ? -r.gap_s : 0), 0);
    const said = [`All nodes have saved ${span(data.head?.totals.saved_s)} since their plugins started counting. Running tasks are expected to save another ${span(ahead)}.`];
    const about = data.single.ended;
    if (about?.error) said.push(`Finished tasks cannot be read: ${about.error}.`);
    else if (about) {
      said.push(`Below: ${plural(ended.length, "finished task")} whose allocations Nomad still has${oldest ? `, since ${moment(oldest)}` : ""}${about.all ? "" : ", among the newest 2,000 allocations"}, without those that ended within 2 % of their fair-share time.`);
    }
    setText($("saved-text"), said.join(" "));
  },
  policies() {
    const nodes = [...data.node.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
    const select = $("policy-node");
    fill(select, nodes.map((n) => [n.id, n.name]), () => nodes.map((n) => {
      const o = el("option", "", n.name || n.id);
      o.value = n.id;
      return o;
    }));
    if (compared.node && select.value !== compared.node && nodes.some((n) => n.id === compared.node)) select.value = compared.node;
    if (!compared.asked && select.value) askPolicies();
  },
};

// Detail view.
async function readTask() {
  const asked = detail;
  if (!asked) return;
  try {
    const answer = await ask("api/task", { alloc: asked.alloc, task: asked.task });
    if (detail !== asked) return;
    asked.answer = answer;
    asked.error = "";
  } catch (error) {
    if (detail !== asked) return;
    asked.error = error.message;
  }
  later();
}

function drawTask() {
  const t = detail?.answer;
  const error = [detail?.error, t?.error].filter(Boolean).join("; ");
  $("task-error").hidden = !error;
  setText($("task-error"), error);
  setText($("h-task"), t ? taskName(t) : "Task");
  setText($("task-why"), t?.status?.why ?? (detail && !t && !error ? "Reading…" : ""));
  const facts = t ? factsOf(t) : [];
  fill($("task-facts"), facts, () => facts.flatMap(([name, said]) => [el("dt", "", name), el("dd", "", said)]));
  const c = t?.curves;
  const sign = c ? [detail.alloc, detail.task, c.time.length, c.time.at(-1), t.no_curves] : [];
  fill($("task-charts"), sign, () => {
    if (!c) return [];
    if (t.no_curves) return [el("p", "muted", `Its history cannot be read: ${t.no_curves}`)];
    const name = t.status?.metric || (c.steps ? "Steps" : "Metric");
    return [
      chart({ title: name, times: c.time, lines: [{ name, values: c.value }], marks: c.marks }),
      chart({ title: "CPU, share of the node's pool", write: percent, times: c.time, lines: [{ name: "used", values: c.use }, { name: "limit", values: c.limit }], marks: c.marks, bounds: [0, 1] }),
      chart({ title: "Ahead of its fair share, CPU-seconds", times: c.time, lines: [{ name: "ahead", values: c.ahead }], marks: c.marks }),
      chart({ title: "Growth, per second", times: c.time, lines: [{ name: "growth", values: c.growth }], marks: c.marks }),
    ];
  });
  const events = [
    ...(t?.events ?? []).map((e) => [Date.parse(e.time), `${e.type}: ${e.message}`]),
    ...(c?.marks ?? []).map((m) => [m.time, m.text]),
  ].sort((a, b) => b[0] - a[0]).slice(0, 100);
  fill($("task-events"), events, () => (events.length ? events.map(([at, said]) => el("li", "", el("span", "muted", moment(at)), el("span", "", said))) : [el("li", "muted", "None.")]));
}

function factsOf(t) {
  const s = t.status;
  const at = now();
  const all = [
    ["Job", `${t.namespace}/${t.job}, group ${t.group}, task ${t.task}`],
    ["Allocation", `${t.alloc} on node ${t.node}${t.started ? `, running for ${span((at - Date.parse(t.started)) / 1000)}` : ""}`],
    ["State", t.state + (states[t.state] ? `: ${states[t.state]}` : "")],
  ];
  if (!s) return all;
  all.push(["Rule", s.rule || "–"]);
  if (s.kind === "service") {
    all.push(["Response", `${num(s.target.response_s)} s, target ${num(s.target.qoe_s)} s`]);
  } else {
    all.push(["Metric", `${s.metric || known(s.value) ? `${s.metric || "?"} = ${num(s.value)} (${s.goal || "–"})` : "none"}, ${plural(s.reports, "report")}`]);
    all.push(["Steps", known(s.step) ? `${num(s.step)}${known(s.total) ? ` of ${num(s.total)}` : ""}` : "–"]);
    all.push(["Growth", known(s.growth) ? [`${num(s.growth)} per second`, states[s.category], s.plateau ? "flat" : ""].filter(Boolean).join(", ") : "not measured"]);
    const by = [["second and part of the memory", s.resources.memory_growth], ["MiB of block I/O", s.resources.block_growth], ["MiB of network I/O", s.resources.network_growth]].filter(([, g]) => known(g));
    if (by.length) all.push(["Progress", by.map(([what, g]) => `${num(g)} per ${what}`).join(", ")]);
    all.push(["End", s.fair.finish ? `in ${inTime(s.fair.finish, at)}; with its fair share in ${inTime(s.fair.fair_finish, at)}` : "unknown"]);
    all.push(["Left", `${num(s.fair.remaining_cpu_s)} CPU-seconds (${s.fair.remaining_why || "size unknown"})`]);
    all.push(["Ahead", `${num(s.fair.ahead_cpu_s)} CPU-seconds ahead of its fair share`]);
  }
  if (known(s.target.acceptable) || known(s.target.objective)) {
    all.push(["Targets", `acceptable ${num(s.target.acceptable)}, objective ${num(s.target.objective)}: ${s.target.state}`]);
  }
  all.push(["CPU", `${percent(s.use)} of a pool of ${num(s.node.pool_cores)} cores, limit ${percent(s.limit.fraction)}; ${num(s.cpu_s)} CPU-seconds so far`]);
  if (s.limit.error) all.push(["Limit", s.limit.error]);
  if (known(s.resources.memory_mib)) all.push(["Memory", `${num(s.resources.memory_mib)} MiB`]);
  if (s.gpu) {
    all.push(["GPU", [s.gpu.state, s.gpu.why].filter(Boolean).join(": ")]);
    for (const c of s.gpu.cards ?? []) all.push(["Card", `${c.model} ${c.uuid}: granted ${c.held_mib} MiB, share ${c.share_mib}, in use ${c.used_mib}, parked ${c.parked_mib}, waiting for ${c.waiting_mib}`]);
    if (s.gpu_time) all.push(["GPU time", s.gpu_time.why]);
  }
  if (s.move.state) all.push(["Move", [s.move.state, s.move.why].filter(Boolean).join(": ")]);
  all.push(["Updated", `${moment(s.updated)}, driver ${s.version}, policy ${s.policy}`]);
  return all;
}

// Comparison of policies.
const compared = { node: "", asked: false };
async function askPolicies() {
  const node = $("policy-node").value;
  if (!node) return;
  compared.node = node;
  compared.asked = true;
  setText($("policy-text"), "Asking…");
  try {
    const answer = await ask("api/policies", { node });
    if (compared.node === node) drawPolicies(answer);
  } catch (error) {
    if (compared.node !== node) return;
    $("policies").replaceChildren();
    delete $("policies").dataset.sign;
    setText($("policy-text"), error.message);
  }
}

function drawPolicies(c) {
  setText($("policy-text"), `Each policy's decision on the snapshot that ${c.running || "the node's policy"} used at ${moment(c.time)}. Limits are shares of the pool. The shim's policies are not included.`);
  fill($("policies"), c, () => {
    const head = el("tr");
    const column = (title, cls) => {
      const th = el("th", cls, title);
      th.scope = "col";
      head.append(th);
      return th;
    };
    column("Job");
    column("Current", "num");
    for (const p of c.policies) column(p.name === c.running ? `${p.name} (active)` : p.name, "num").title = p.synopsis;
    const what = (d) => (d.stop ? "stops" : d.limit < 1 ? percent(d.limit) : "no limit");
    const name = (t) => (t.job ? taskName(t) : "a task this token may not read");
    const rows = c.tasks.map((t) => {
      const th = el("th", "", name(t));
      th.scope = "row";
      return el("tr", "", th, el("td", "num", percent(t.limit)), ...t.decisions.map((d) => {
        if (!d) return el("td", "num muted", "–");
        const td = el("td", "num", what(d));
        td.title = `${d.rule}: ${d.why}`;
        return td;
      }));
    });
    const table = el("table", "vtable matrix", el("thead", "", head), el("tbody", "", ...rows));
    table.setAttribute("aria-label", "Limits by policy");
    const box = el("div", "scroll", table);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Limits by policy");
    const why = c.tasks.map((t) => el("details", "", el("summary", "", name(t)), el("ul", "", ...t.decisions.map((d, i) =>
      el("li", "", el("strong", "", c.policies[i].name), d ? ` ${what(d)} (${d.rule}): ${d.why}` : " no decision")))));
    const cannot = c.policies.filter((p) => p.error).map((p) => el("p", "notice", `${p.name} failed: ${p.error}`));
    return c.tasks.length ? [box, ...cannot, el("h3", "", "Why"), ...why] : [el("p", "empty", "The snapshot has no tasks.")];
  });
}

// Tasks on the screen are read first, with curves.
let told = "";
let telling = 0;
function see(rows) {
  clearTimeout(telling);
  telling = setTimeout(() => {
    const keys = rows.slice(0, 200).map((r) => [r.alloc, r.task]);
    const sign = JSON.stringify(keys);
    if (!pageID || sign === told) return;
    told = sign;
    tell(pageID, keys).catch(() => (told = ""));
  }, 200);
}

// Routing.
function route(focus) {
  const [, name = "tasks", ...rest] = location.hash.split("/").map(decodeURIComponent);
  view = views[name] ? name : "tasks";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `view-${view}`;
  const current = view === "task" ? "tasks" : view;
  for (const a of $("nav").children) {
    if (a.hash === `#/${current}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  detail = null;
  if (view === "task") {
    detail = { alloc: rest[0] ?? "", task: rest[1] ?? "", answer: null, error: "" };
    readTask();
  }
  if (view === "policies") {
    compared.asked = false;
    if (rest[0]) compared.node = rest[0];
  }
  draw();
  const title = $(`h-${view}`);
  document.title = `${title.textContent} – Ebbtide`;
  if (focus) title.focus();
}

// Token.
function askToken(error = "") {
  const dialog = $("token-dialog");
  $("token-error").hidden = !error;
  setText($("token-error"), error);
  $("token").value = "";
  if (!dialog.open) dialog.showModal();
  $("token").focus();
}
function useToken(token) {
  $("token-dialog").close();
  setToken(token);
  forget();
  notice([]);
  live(false, "Connecting");
  stream.restart();
}
$("token-button").addEventListener("click", () => askToken());
$("token-forget").addEventListener("click", () => useToken(""));
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  if (token) useToken(token);
});

$("filter").addEventListener("input", later);
$("namespace").addEventListener("change", later);
$("policy-node").addEventListener("change", askPolicies);
$("policy-ask").addEventListener("click", askPolicies);
addEventListener("hashchange", () => route(true));
setInterval(readTask, 5000);
setText($("token-button"), getToken() ? "Token (set)" : "Token");
route(false);
stream.start();
