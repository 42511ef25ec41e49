// The overview, the list of tasks, and moving between them. What is chosen stands in the address after "#".

const byId = (id) => document.getElementById(id);
const DEFAULTS = { q: "", status: "all", sort: "file", task: "" };
let state = { ...DEFAULTS };

// Every task, with what filters, order and cards need.
const TASKS = DATA.tasks.map((task, number) => {
  const outcomes = task.outputs.map((output) => output.outcome);
  const solved = outcomes.filter((name) => name === "first" || name === "second").length;
  const shares = task.outputs.map((output) => output.total ? output.candidates[0].votes / output.total : 0);
  return {
    ...task, number, outcomes,
    verdict: outcomes.every((name) => name === "unknown") ? "unknown"
      : solved === outcomes.length ? "solved" : solved ? "partly" : "unsolved",
    share: Math.min(...shares),
    fallback: task.outputs.some((output) => output.fallbacks.length),
  };
});

const FILTERS = {
  all: ["all tasks", () => true],
  solved: ["solved", (task) => task.verdict === "solved"],
  partly: ["partly solved", (task) => task.verdict === "partly"],
  unsolved: ["not solved", (task) => task.verdict === "unsolved"],
  fallback: ["with a fallback attempt", (task) => task.fallback],
  known: ["with demonstrations that the checkpoint knew", (task) => task.known],
  contaminated: ["with test outputs that the checkpoint knew", (task) => task.contaminated],
};
for (const [name, [words]] of Object.entries(OUTCOMES)) {
  FILTERS[name] = [`with an output: ${words}`, (task) => task.outcomes.includes(name)];
}
const SORTS = {
  file: ["order of the file", (a, b) => a.number - b.number],
  sure: ["most agreement first", (a, b) => b.share - a.share],
  unsure: ["least agreement first", (a, b) => a.share - b.share],
};

// Overview --------------------------------------------------------------------------------------------------

function overview() {
  const remarks = DATA.remarks.map((line) =>
    make("p", { class: /^(LEAK|CONTAMINATED|UNKNOWN)/.test(line) ? "alarm" : "" }, line));
  byId("overview").append(remarks.length ? make("div", { class: "notice" }, remarks) : "",
    scoreTiles(), outcomePanel(), DATA.run.length ? runPanel() : "");
}

function panel(title, ...content) {
  return make("div", { class: "panel" }, make("h2", {}, title), ...content);
}

function scoreTiles() {
  if (!DATA.scores) return make("p", { class: "notice" }, "The true outputs are not known: there is no score.");
  const { outputs, task_mean: mean, tasks } = DATA.scores;
  const tile = (title, { score }, detail) =>
    panel(title, make("p", { class: "figure" }, percent(score, 2)), make("p", { class: "detail" }, detail));
  return make("div", { class: "tiles" },
    tile("Outputs", outputs, `${outputs.solved} of ${plural(outputs.total, "test output")} solved`),
    tile("Task mean", mean, `mean share of solved outputs over ${plural(mean.tasks, "task")}`),
    tile("Tasks", tasks, `${tasks.solved} of ${plural(tasks.total, "task")} solved entirely`));
}

function outcomePanel() {
  const outcomes = TASKS.flatMap((task) => task.outcomes);
  const bar = make("div", { class: "stacked", "aria-hidden": "true" }), legend = make("ul", { class: "legend" });
  for (const [name, [words, colour]] of Object.entries(OUTCOMES).filter(([name]) => outcomes.includes(name))) {
    const count = outcomes.filter((outcome) => outcome === name).length, segment = make("span");
    const swatch = make("span", { class: "swatch" });
    segment.style.flexGrow = count;
    segment.style.background = swatch.style.background = colour;
    bar.append(segment);
    legend.append(make("li", {}, make("a", { href: address({ status: name }) },
      swatch, words, " ", make("b", {}, count), ` (${percent(count / outcomes.length)})`)));
  }
  return panel(`Outcome of ${plural(outcomes.length, "test output")}`, bar, legend);
}

function runPanel() {
  const rows = DATA.run.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  return panel("The run", make("dl", {}, rows));
}

// The list, and one task ------------------------------------------------------------------------------------

function chosenTasks() {
  const words = state.q.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const named = (task) => !words.length || words.some((word) => task.id.toLowerCase().includes(word));
  return TASKS.filter((task) => FILTERS[state.status][1](task) && named(task)).sort(SORTS[state.sort][1]);
}

function address(wanted) {
  const entries = Object.entries({ ...state, ...wanted }).filter(([name, value]) => value !== DEFAULTS[name]);
  return "#" + new URLSearchParams(entries);
}

function show() {
  const tasks = chosenTasks(), opened = TASKS.find((task) => task.id === state.task);
  for (const id of ["overview", "tasks"]) byId(id).hidden = Boolean(opened);
  byId("task").hidden = !opened;
  byId("task").replaceChildren(...(opened ? [navigation(opened, tasks), taskInFull(opened)] : []));
  const cards = tasks.length ? make("ul", { class: "cards" }, tasks.map(card))
    : make("p", { class: "notice" }, "No task fits; change the search or the filter.");
  byId("list").replaceChildren(...(opened ? [] : [cards]));
  byId("count").textContent = `${tasks.length} of ${plural(TASKS.length, "task")}`;
  document.title = opened ? `${opened.id} · ${DATA.title}` : DATA.title;
}

// Its links are what the keys follow.
function navigation(opened, tasks) {
  const place = tasks.indexOf(opened);
  const link = (rel, task, text) =>
    task ? make("a", { rel, href: address({ task: task.id }) }, text) : make("span", {}, text);
  return make("nav", { class: "tasknav", "aria-label": "Tasks" }, link("up", { id: "" }, "↑ all tasks"),
    link("prev", tasks[place - 1], "← previous"), link("next", place < 0 ? null : tasks[place + 1], "next →"));
}

function onKey(event) {
  if (/^(INPUT|SELECT)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const rel = { Escape: "up", ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  document.querySelector(`.tasknav a[rel=${rel}]`)?.click();
  if (event.key !== "/" || state.task) return;
  event.preventDefault();
  byId("q").focus();
}

function readAddress() {
  state = { ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  if (!(state.status in FILTERS)) state.status = DEFAULTS.status;
  if (!(state.sort in SORTS)) state.sort = DEFAULTS.sort;
  for (const id of ["q", "status", "sort"]) byId(id).value = state[id];
}

// Typing must not fill the history of the browser, so controls replace the address.
function onControl() {
  for (const id of ["q", "status", "sort"]) state[id] = byId(id).value;
  history.replaceState(null, "", address({}));
  show();
}

function onAddress() {
  const before = state.task;
  readAddress();
  show();
  if (state.task) scrollTo(0, 0);
  const cards = [...document.querySelectorAll("a.card")];
  const focused = state.task ? document.querySelector("#task h2")
    : cards.find((link) => link.hash === address({ task: before }));
  focused?.focus();
}

function addOptions(id, table) {
  for (const [name, [words]] of Object.entries(table)) byId(id).append(make("option", { value: name }, words));
}

for (const filter of Object.values(FILTERS)) filter[0] += ` (${TASKS.filter(filter[1]).length})`;
overview();
addOptions("status", FILTERS);
addOptions("sort", SORTS);
byId("tools").addEventListener("input", onControl);
byId("tools").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", onAddress);
addEventListener("keydown", onKey);
readAddress();
show();
