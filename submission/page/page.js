// Filters, the list of tasks, moving between them. What is chosen stands in the address after "#".

const byId = (id) => document.getElementById(id);
const CONTROLS = { q: "", status: "all", sort: "file", view: "cards", digits: "", theme: "auto" };
const CHOICES = ["q", "status", "sort", "view", "theme"];
let state = { ...CONTROLS, task: "" };

// Every task with what filtering and sorting need.
const TASKS = DATA.tasks.map((task, number) => {
  const outcomes = task.outputs.map((output) => output.outcome);
  const known = outcomes.filter((name) => name !== "unknown").length;
  const solved = outcomes.filter((name) => name === "first" || name === "second").length;
  const shares = task.outputs.map((output) => output.total ? output.candidates[0].votes / output.total : 0);
  return {
    ...task, number, outcomes, solved,
    verdict: !known ? "unknown" : solved === outcomes.length ? "solved" : solved ? "partly" : "unsolved",
    share: Math.min(...shares),
    cells: Math.max(...task.outputs.map((output) => output.input.length)),
    fallback: task.outputs.some((output) => output.fallbacks && output.fallbacks.length),
    filmed: DATA.films.some((film) => film.task_id === task.id),
  };
});

const VERDICTS = { solved: "✓ solved", partly: "◐ partly solved", unsolved: "✗ not solved", unknown: "? not known" };
const FILTERS = {
  all: ["all tasks", () => true],
  solved: ["solved", (task) => task.verdict === "solved"],
  partly: ["partly solved", (task) => task.verdict === "partly"],
  unsolved: ["not solved", (task) => task.verdict === "unsolved"],
  first: ["with an output solved by attempt 1", (task) => task.outcomes.includes("first")],
  second: ["with an output solved by attempt 2", (task) => task.outcomes.includes("second")],
  ranked: ["predicted, but not handed in", (task) => task.outcomes.includes("ranked")],
  missed: ["with an output missed", (task) => task.outcomes.includes("missed")],
  unknown: ["with an unknown output", (task) => task.outcomes.includes("unknown")],
  fallback: ["with a fallback attempt", (task) => task.fallback],
  film: ["with a film", (task) => task.filmed],
};
const SORTS = {
  file: ["order of the file", (a, b) => a.number - b.number],
  id: ["task id", (a, b) => (a.id < b.id ? -1 : 1)],
  sure: ["most agreement first", (a, b) => b.share - a.share],
  unsure: ["least agreement first", (a, b) => a.share - b.share],
  size: ["smallest input first", (a, b) => a.cells - b.cells],
};

// Drawing hundreds of grids takes time, so each is drawn when it comes near the window, or before printing.
const waiting = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "600px" });

function draw(element) {
  const content = waiting.get(element);
  if (!content) return;
  waiting.delete(element);
  watcher.unobserve(element);
  element.append(...content());
}

function later(element, content) {
  waiting.set(element, content);
  watcher.observe(element);
  return element;
}

function badge(verdict) {
  return make("span", { class: "badge " + verdict }, VERDICTS[verdict]);
}

// The whole page ------------------------------------------------------------------------------------------

function chosenTasks() {
  const words = state.q.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const named = (task) => !words.length || words.some((word) => task.id.toLowerCase().includes(word));
  return TASKS.filter((task) => FILTERS[state.status][1](task) && named(task)).sort(SORTS[state.sort][1]);
}

function address(wanted) {
  const entries = Object.entries(wanted).filter(([name, value]) => value !== (CONTROLS[name] ?? ""));
  return new URLSearchParams(entries).toString();
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state = { ...CONTROLS, task: "" };
  for (const name of Object.keys(state)) if (given.has(name)) state[name] = given.get(name);
  if (!(state.status in FILTERS)) state.status = "all";
  if (!(state.sort in SORTS)) state.sort = "file";
  byId("digits").checked = Boolean(state.digits);
  for (const name of CHOICES) if (byId(name).value !== state[name]) byId(name).value = state[name];
}

function show() {
  document.documentElement.dataset.theme = state.theme;
  const tasks = chosenTasks(), opened = TASKS.find((task) => task.id === state.task);
  waiting.clear();
  watcher.disconnect();
  for (const id of ["overview", "tasks"]) byId(id).hidden = Boolean(opened);
  byId("task").hidden = !opened;
  byId("task").replaceChildren(...(opened ? [taskNavigation(opened, tasks), taskInFull(opened)] : []));
  byId("list").replaceChildren(...(opened ? [] : [listOf(tasks)]));
  byId("count").textContent = `${tasks.length} of ${plural(TASKS.length, "task")}`;
  document.documentElement.dataset.shown = tasks.length;
  document.title = opened ? `${opened.id} · ${DATA.title}` : DATA.title;
}

function listOf(tasks) {
  if (!tasks.length) return make("p", { class: "notice" }, "No task fits; change the search or the filter.");
  if (state.view !== "full") return make("ul", { class: "cards" }, tasks.map(card));
  const slot = (task) => later(make("div", { class: "slot" }), () => [taskInFull(task)]);
  return make("div", { class: "full" }, tasks.map(slot));
}

function neighbours(opened, tasks) {
  const place = tasks.findIndex((task) => task.id === opened.id);
  return place < 0 ? [undefined, undefined] : [tasks[place - 1], tasks[place + 1]];
}

function taskNavigation(opened, tasks) {
  const [previous, next] = neighbours(opened, tasks);
  const hrefOf = (id) => "#" + address({ ...state, task: id });
  const link = (task, text) => task ? make("a", { href: hrefOf(task.id) }, text) : make("span", {}, text);
  return make("nav", { class: "tasknav", "aria-label": "Tasks" },
    make("a", { href: hrefOf("") }, "↑ all tasks"), link(previous, "← previous"), link(next, "next →"));
}

function goTo(wanted) {
  location.hash = address({ ...state, ...wanted });
}

// Typing must not fill the history of the browser, so controls replace the address.
function choose() {
  for (const name of CHOICES) state[name] = byId(name).value;
  state.digits = byId("digits").checked ? "1" : "";
  history.replaceState(null, "", "#" + address(state));
  show();
}

function onAddress() {
  const before = state.task;
  readAddress();
  show();
  if (state.task) {
    scrollTo(0, 0);
    byId("task").querySelector("h2")?.focus();
  } else if (before) {
    const links = [...document.querySelectorAll("a.card")];
    links.find((link) => link.querySelector(".id").textContent === before)?.focus();
  }
}

function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const opened = TASKS.find((task) => task.id === state.task);
  const [previous, next] = opened ? neighbours(opened, chosenTasks()) : [];
  if (event.key === "/" && !opened) { event.preventDefault(); byId("q").focus(); }
  else if (event.key === "Escape" && opened) goTo({ task: "" });
  else if (event.key === "ArrowLeft" && previous) goTo({ task: previous.id });
  else if (event.key === "ArrowRight" && next) goTo({ task: next.id });
}

function addOptions(id, table, count) {
  for (const [name, [words, test]] of Object.entries(table)) {
    const number = count ? TASKS.filter(test).length : 0;
    const label = count ? `${words} (${number})` : words;
    if (!count || number || name === "all") byId(id).append(make("option", { value: name }, label));
  }
}

overview();
addOptions("status", FILTERS, true);
addOptions("sort", SORTS, false);
byId("tools").addEventListener("input", choose);
byId("tools").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["theme", "digits"]) byId(id).addEventListener("input", choose);
byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("tasks").focus(); });
addEventListener("hashchange", onAddress);
addEventListener("keydown", onKey);
addEventListener("beforeprint", () => [...waiting.keys()].forEach(draw));
readAddress();
show();
