// One task: its card in the list, and everything about it in full.

const OUTCOMES = {
  first: ["solved by attempt 1", "#1f9d4d"],
  second: ["solved by attempt 2", "#7cc576"],
  ranked: ["predicted, but not handed in", "#e2a72e"],
  missed: ["not solved", "#c9564c"],
  unknown: ["output not known", "#8b959f"],
};
const VERDICTS = { solved: "✓ solved", partly: "◐ partly solved", unsolved: "✗ not solved", unknown: "not known" };

function badge(verdict) {
  return make("span", { class: "badge " + verdict }, VERDICTS[verdict]);
}

const drawn = {}; // the drawings of cards, which take most of the time of showing them

// A card shows the attempt that is right, else the first one.
function card(task) {
  const output = task.outputs[0], known = output.truth !== null, second = known && output.attempts[1] === output.truth;
  const attempt = output.attempts[second ? 1 : 0];
  const wrong = known ? differences(attempt, output.truth) ?? [] : [];
  const thumb = (name, text, marked = []) =>
    make("span", { class: "thumb" }, drawGrid(text, cellFor(102, text), { marked }), make("span", {}, name));
  const facts = [
    output.total ? `${percent(task.share)} of votes agree` : "", task.outputs.length > 1 ? "several test outputs" : "",
    task.fallback ? "fallback" : "", task.known ? "demonstrations known" : "", task.contaminated ? "contaminated" : ""];
  return make("li", {}, make("a", { class: "card", href: address({ task: task.id }) },
    make("span", { class: "cardhead" }, make("span", { class: "id" }, task.id), badge(task.verdict)),
    drawn[task.number] ??= make("span", { class: "thumbs", "aria-hidden": "true" },
      thumb("input", output.input), thumb(second ? "attempt 2" : "attempt 1", attempt, wrong),
      known ? thumb("truth", output.truth) : thumb("attempt 2", output.attempts[1])),
    make("span", { class: "cardfoot" }, facts.filter(Boolean).map((fact) => make("span", {}, fact)))));
}

function taskInFull(task) {
  const pairs = task.demonstrations.map(([input, output], i) => make("div", { class: "pair" },
    gridFigure(`Input ${i + 1}`, input, cellFor(170, input, output)),
    make("span", { "aria-hidden": "true" }, "→"),
    gridFigure(`Output ${i + 1}`, output, cellFor(170, output, input))));
  return make("article", { class: "task" },
    make("h2", { class: "id", tabindex: "-1" }, task.id, " ", badge(task.verdict)),
    make("h3", {}, "Demonstrations"), make("div", { class: "pairs" }, pairs),
    task.outputs.map((output, test) => outputInFull(task, output, test)));
}

function outputInFull(task, output, test) {
  const shown = [output.input, ...output.attempts, output.truth];
  const figure = (caption, text, options) => gridFigure(caption, text, cellFor(220, text, ...shown), options);
  const name = task.outputs.length > 1 ? `Test ${test + 1} of ${task.outputs.length}` : "Test";
  return make("section", {}, make("h3", {}, `${name}: ${OUTCOMES[output.outcome][0]}`),
    make("div", { class: "pairs" },
      figure("Test input", output.input),
      output.attempts.map((text, i) => figure(`Attempt ${i + 1}`, text, comparison(output, i))),
      output.truth === null ? null : figure("Truth", output.truth)),
    candidateList(output));
}

// How an attempt compares with the truth: its outline, its wrong cells, and a note.
function comparison({ attempts, truth, fallbacks }, i) {
  const origin = fallbacks.includes(i) ? "a fallback, not predicted; " : "";
  if (truth === null) return { note: origin };
  const wrong = differences(attempts[i], truth), cells = plural(cellsOf(truth).length, "cell");
  const sizes = `size ${sizeText(attempts[i])}, expected ${sizeText(truth)}`;
  if (wrong === null) return { tone: "wrong", note: `${origin}✗ ${sizes}` };
  if (wrong.length) return { tone: "wrong", note: `${origin}✗ ${wrong.length} of ${cells} differ`, marked: wrong };
  return { tone: "right", note: origin + "✓ equals the truth" };
}

function candidateList(output) {
  if (!output.candidates) return null;
  if (!output.candidates.length) return make("p", { class: "notice" }, "No candidate: no prediction held a grid.");
  const place = output.rank ? `the truth is number ${output.rank}` : "the truth is not among them";
  const number = `${output.candidates.length} of ${plural(output.distinct, "candidate")}`;
  const heading = `Leading ${number}, ${plural(output.total, "vote")}`;
  return make("div", {}, make("h4", {}, output.truth === null ? heading : `${heading}; ${place}`),
    make("ol", { class: "candidates" }, output.candidates.map((candidate, i) => candidateItem(candidate, i, output))));
}

function candidateItem({ grid, votes, halting }, place, output) {
  const uses = output.attempts.flatMap((attempt, i) => (grid === attempt ? [`attempt ${i + 1}`] : []));
  if (grid === output.truth) uses.push("✓ truth");
  return make("li", { class: grid === output.truth ? "right" : "" },
    gridFigure(`No. ${place + 1}`, grid, cellFor(130, grid)),
    make("div", { class: "candidatefacts" },
      make("p", {}, make("b", {}, plural(votes, "vote")), ` (${percent(votes / output.total, 1)}) `,
        uses.map((use) => make("span", { class: "badge" }, use))),
      make("progress", { value: votes, max: output.total, "aria-hidden": "true" }),
      make("p", {}, `halting probability ${percent(halting, 1)}`)));
}
