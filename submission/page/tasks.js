// One task: its card in the list, and everything about it in full.

function card(task) {
  const output = task.outputs[0], more = task.outputs.length - 1;
  const wrong = output.truth === null ? [] : differences(output.attempts[0], output.truth) ?? [];
  const thumbs = () => [
    thumb("input", output.input), thumb("attempt 1", output.attempts[0], wrong),
    output.truth === null ? thumb("attempt 2", output.attempts[1]) : thumb("truth", output.truth)];
  return make("li", {}, make("a", { class: "card", href: "#" + address({ ...state, task: task.id }) },
    make("span", { class: "cardhead" }, make("span", { class: "id" }, task.id), badge(task.verdict)),
    later(make("span", { class: "thumbs", "aria-hidden": "true" }), thumbs),
    make("span", { class: "cardfoot" },
      output.total ? make("span", {}, `${percent(task.share)} of votes agree`) : null,
      more ? make("span", {}, plural(task.outputs.length, "test output")) : null,
      task.fallback ? make("span", {}, "fallback") : null, task.filmed ? make("span", {}, "film") : null)));
}

function thumb(name, text, marked = []) {
  const drawing = drawGrid(text, { cell: cellFor(102, text), marked, digits: Boolean(state.digits) });
  return make("span", { class: "thumb" }, drawing, make("span", {}, name));
}

function taskInFull(task) {
  const digits = Boolean(state.digits);
  const pairs = task.demonstrations.map(([input, output], i) => {
    const cell = cellsFor(170, input, output);
    return make("div", { class: "pair" },
      gridFigure(`Input ${i + 1}`, input, { cell: cell(input), digits }),
      make("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      gridFigure(`Output ${i + 1}`, output, { cell: cell(output), digits }));
  });
  return make("article", { class: "task" },
    make("h2", { class: "id", tabindex: "-1" }, task.id, " ", badge(task.verdict)),
    make("h3", {}, "Demonstrations"), make("div", { class: "pairs" }, pairs),
    task.outputs.map((output, test) => outputInFull(task, output, test)));
}

function outputInFull(task, output, test) {
  const digits = Boolean(state.digits), cell = cellsFor(220, output.input, output.truth, ...output.attempts);
  const looks = (grid) => ({ cell: cell(grid), digits });
  const name = task.outputs.length > 1 ? `Test ${test + 1} of ${task.outputs.length}` : "Test";
  return make("section", {}, make("h3", {}, `${name}: ${OUTCOMES[output.outcome]}`),
    make("div", { class: "pairs" },
      gridFigure("Test input", output.input, looks(output.input)),
      output.attempts.map((grid, i) => attemptFigure(output, grid, i, looks(grid))),
      output.truth === null ? null : gridFigure("Truth", output.truth, { ...looks(output.truth), tone: "truth" })),
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
  const none = "No candidate: nothing that was predicted held a grid.";
  if (!output.candidates.length) return make("p", { class: "notice" }, none);
  const place = output.rank ? `; the truth is number ${output.rank}` : "; the truth is not among them";
  const votes = plural(output.total, "vote"), rank = output.truth === null ? "" : place;
  const said = `Leading candidates of ${output.distinct}, by ${votes}${rank}`;
  return make("div", {}, make("h4", {}, said),
    make("ol", { class: "candidates" }, output.candidates.map((one) => candidateItem(one, output, digits))));
}

function candidateItem({ grid, votes, halting, views }, output, digits) {
  const uses = output.attempts.flatMap((attempt, i) => (grid === attempt ? [`attempt ${i + 1}`] : []));
  if (grid === output.truth) uses.push("✓ truth");
  const share = votes / output.total, bar = make("span", { class: "share", "aria-hidden": "true" }, make("span"));
  bar.firstChild.style.width = `${100 * share}%`;
  return make("li", { class: grid === output.truth ? "right" : "" },
    drawGrid(grid, { cell: cellFor(130, grid), digits, label: "Candidate, " + inWords(grid) }),
    make("div", { class: "candidatefacts" },
      make("p", {}, make("b", {}, plural(votes, "vote")), ` (${percent(share, 1)}) `,
        uses.map((use) => make("span", { class: "use" }, use))),
      bar,
      make("p", {}, `mean halting probability ${percent(halting, 1)}`),
      make("p", {}, distance(grid, output.truth)),
      viewsText(views, output.answering)));
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
  const rows = views.dihedrals.map((count, i) => answering.dihedrals[i]
    ? factRow(DATA.orientations[i], `${count} of ${answering.dihedrals[i]}`) : null);
  return make("details", {}, make("summary", {}, said, views.identity ? ", the task as given among them" : ""),
    make("table", { class: "facts" }, make("tbody", {}, rows)),
    make("p", { class: "names" }, views.names.join(", "), views.count > views.names.length ? ", …" : ""));
}
