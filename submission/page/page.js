// Filters, the list of tasks, one task in full. What is chosen stands in the address after "#".

const byId = (id) => document.getElementById(id);
const CONTROLS = { q: "", status: "all", sort: "file", view: "cards", digits: "", theme: "auto" };
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
const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && draw(entry.target)),
  { rootMargin: "600px" });

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

// One task ------------------------------------------------------------------------------------------------

function card(task) {
  const output = task.outputs[0], more = task.outputs.length - 1;
  const wrong = output.truth === null ? [] : differences(output.attempts[0], output.truth) ?? [];
  const thumbs = () => [
    thumb("input", output.input), thumb("attempt 1", output.attempts[0], wrong),
    output.truth === null ? thumb("attempt 2", output.attempts[1]) : thumb("truth", output.truth)];
  return make("li", {}, make("a", { class: "card", href: "#" + address({ ...state, task: task.id }) },
    make("span", { class: "cardhead" }, make("span", { class: "id" }, task.id), badge(task.verdict)),
    later(make("span", { class: "thumbs" }), thumbs),
    make("span", { class: "cardfoot" },
      output.total ? make("span", {}, `${percent(task.share)} of votes agree`) : null,
      more ? make("span", {}, plural(task.outputs.length, "test output")) : null,
      task.fallback ? make("span", {}, "fallback") : null, task.filmed ? make("span", {}, "film") : null)));
}

function thumb(name, text, marked = []) {
  return make("span", { class: "thumb" }, drawGrid(text, { cell: cellFor(102, text), marked, digits: Boolean(state.digits) }), make("span", {}, name));
}

function taskInFull(task, level) {
  const digits = Boolean(state.digits);
  const pairs = task.demonstrations.map(([input, output], i) => {
    const cell = cellFor(170, input, output);
    return make("div", { class: "pair" }, gridFigure(`Input ${i + 1}`, input, { cell, digits }),
      make("span", { class: "arrow", "aria-hidden": "true" }, "→"), gridFigure(`Output ${i + 1}`, output, { cell, digits }));
  });
  return make("article", { class: "task" },
    make("h" + level, { class: "id", tabindex: "-1" }, task.id, " ", badge(task.verdict)),
    make("h3", {}, "Demonstrations"), make("div", { class: "pairs" }, pairs),
    task.outputs.map((output, test) => outputInFull(task, output, test)));
}

function outputInFull(task, output, test) {
  const digits = Boolean(state.digits), cell = cellFor(220, output.input, output.truth, ...output.attempts);
  const title = (task.outputs.length > 1 ? `Test ${test + 1} of ${task.outputs.length}` : "Test") + ": " + OUTCOMES[output.outcome];
  return make("section", {}, make("h3", {}, title),
    make("div", { class: "pairs" },
      gridFigure("Test input", output.input, { cell, digits }),
      output.attempts.map((grid, i) => attemptFigure(output, grid, i, { cell, digits })),
      output.truth === null ? null : gridFigure("Truth", output.truth, { cell, digits, tone: "truth" })),
    candidateList(output, digits), filmsOf(task.id, test).map((film) => filmPlayer(film, digits)));
}

function attemptFigure(output, grid, i, looks) {
  const origin = output.fallbacks && output.fallbacks.includes(i) ? "a fallback, not predicted; " : "";
  const wrong = output.truth === null ? [] : differences(grid, output.truth);
  return gridFigure(`Attempt ${i + 1}`, grid, {
    ...looks, marked: wrong ?? [], note: origin + comparison(grid, output.truth, wrong),
    tone: output.truth === null ? "" : wrong && !wrong.length ? "right" : "wrong" });
}

function comparison(grid, truth, wrong) {
  if (truth === null) return "";
  if (wrong === null) return `✗ size ${sizeText(grid)}, expected ${sizeText(truth)}`;
  const [rows, columns] = sizeOf(grid);
  return wrong.length ? `✗ ${wrong.length} of ${plural(rows * columns, "cell")} differ` : "✓ equals the truth";
}

function candidateList(output, digits) {
  if (!output.candidates) return null;
  if (!output.candidates.length) return make("p", { class: "notice" }, "No candidate: nothing that was predicted held a grid.");
  const rank = output.rank ? `; the truth is number ${output.rank}` : output.truth === null ? "" : "; the truth is not among them";
  const said = `Leading candidates of ${output.distinct}, by ${plural(output.total, "vote")}${rank}`;
  return make("div", {}, make("h4", {}, said),
    make("ol", { class: "candidates" }, output.candidates.map((candidate) => candidateItem(candidate, output, digits))));
}

function candidateItem(candidate, output, digits) {
  const uses = output.attempts.flatMap((grid, i) => (grid === candidate.grid ? [`attempt ${i + 1}`] : []));
  if (candidate.grid === output.truth) uses.push("✓ truth");
  const share = candidate.votes / output.total, bar = make("span", { class: "share", "aria-hidden": "true" }, make("span"));
  bar.firstChild.style.width = percent(share, 1).replace(" ", "");
  return make("li", { class: candidate.grid === output.truth ? "right" : "" },
    drawGrid(candidate.grid, { cell: cellFor(130, candidate.grid), digits, label: "Candidate, " + inWords(candidate.grid) }),
    make("div", { class: "candidatefacts" },
      make("p", {}, make("b", {}, plural(candidate.votes, "vote")), ` (${percent(share, 1)}) `, uses.map((use) => make("span", { class: "use" }, use))),
      bar, make("p", {}, `mean halting probability ${percent(candidate.halting, 1)}`), make("p", {}, distance(candidate.grid, output.truth)), viewsText(candidate.views, output.answering)));
}

function distance(grid, truth) {
  if (truth === null || grid === truth) return "";
  const wrong = differences(grid, truth);
  return wrong === null ? `size ${sizeText(grid)} instead of ${sizeText(truth)}` : `${plural(wrong.length, "cell")} off`;
}

// Which augmented views agreed on a candidate: in how many of the views with each orientation.
function viewsText(views, answering) {
  if (!views) return null;
  const said = `${views.count} of ${plural(answering.count, "augmented view")} agree`;
  if (!views.dihedrals) return make("p", {}, said);
  const rows = views.dihedrals.map((count, i) => answering.dihedrals[i] ? make("tr", {}, make("th", { scope: "row" }, DATA.orientations[i]),
    make("td", {}, `${count} of ${answering.dihedrals[i]}`)) : null);
  return make("details", {}, make("summary", {}, said, views.identity ? ", the task as given among them" : ""),
    make("table", { class: "facts" }, make("tbody", {}, rows)),
    make("p", { class: "names" }, views.names.join(", "), views.count > views.names.length ? ", …" : ""));
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
  for (const name of ["q", "status", "sort", "view", "theme"]) if (byId(name).value !== state[name]) byId(name).value = state[name];
}

function show() {
  document.documentElement.dataset.theme = state.theme;
  const tasks = chosenTasks(), opened = TASKS.find((task) => task.id === state.task);
  waiting.clear();
  watcher.disconnect();
  for (const id of ["overview", "tasks"]) byId(id).hidden = Boolean(opened);
  byId("task").hidden = !opened;
  byId("task").replaceChildren(...(opened ? [taskNavigation(opened, tasks), taskInFull(opened, 2)] : []));
  byId("list").replaceChildren(...(opened ? [] : [listOf(tasks)]));
  byId("count").textContent = `${tasks.length} of ${plural(TASKS.length, "task")}`;
  document.documentElement.dataset.shown = tasks.length;
  document.title = opened ? `${opened.id} · ${DATA.title}` : DATA.title;
}

function listOf(tasks) {
  if (!tasks.length) return make("p", { class: "notice" }, "No task fits; change the search or the filter.");
  if (state.view !== "full") return make("ul", { class: "cards" }, tasks.map(card));
  return make("div", { class: "full" }, tasks.map((task) => later(make("div", { class: "slot" }), () => [taskInFull(task, 2)])));
}

function neighbours(opened, tasks) {
  const place = tasks.findIndex((task) => task.id === opened.id);
  return place < 0 ? [undefined, undefined] : [tasks[place - 1], tasks[place + 1]];
}

function taskNavigation(opened, tasks) {
  const [previous, next] = neighbours(opened, tasks);
  const link = (task, text) => task ? make("a", { href: "#" + address({ ...state, task: task.id }) }, text) : make("span", {}, text);
  return make("nav", { class: "tasknav", "aria-label": "Tasks" },
    make("a", { href: "#" + address({ ...state, task: "" }) }, "↑ all tasks"), link(previous, "← previous"), link(next, "next →"));
}

function goTo(wanted) {
  location.hash = address({ ...state, ...wanted });
}

// Typing must not fill the history of the browser, so controls replace the address.
function choose() {
  for (const name of ["q", "status", "sort", "view", "theme"]) state[name] = byId(name).value;
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
    if (!count || number || name === "all") byId(id).append(make("option", { value: name }, count ? `${words} (${number})` : words));
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
