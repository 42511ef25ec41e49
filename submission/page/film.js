// The film of a puzzle: the answer after every supervision step, and each latent read through the output head.

const FRAME_MS = 450;

function filmsOf(id, test) {
  return DATA.films.filter((film) => film.task_id === id && film.test === test);
}

function filmPlayer(film, digits) {
  const steps = film.steps, last = steps.length - 1;
  const stage = make("div", { class: "pairs" });
  const slider = make("input", { type: "range", min: 0, max: last, value: last, "aria-label": "Supervision step" });
  const words = make("output", { class: "filmwords" });
  const button = make("button", { type: "button" }, "Play");
  let timer = null;
  const show = () => {
    const number = Number(slider.value), step = steps[number];
    const changed = number ? differences(step.answer, steps[number - 1].answer) : [];
    const named = (i) => "Latent z" + (step.latents.length > 1 ? ` ${i + 1}` : "") + " through the output head";
    const cell = cellFor(240, step.answer);
    stage.replaceChildren(
      gridFigure("Answer y", step.answer, { cell, digits, marked: changed, note: changeNote(number, changed) }),
      ...step.latents.map((latent, i) => gridFigure(named(i), latent, { cell, digits })));
    words.textContent = `Step ${number + 1} of ${steps.length}, halting probability ${percent(step.halting, 1)}`;
    slider.setAttribute("aria-valuetext", words.textContent);
  };
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  const advance = () => {
    slider.value = Number(slider.value) + 1;
    show();
    if (Number(slider.value) === last || !button.isConnected) stop();
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(slider.value) === last) { slider.value = 0; show(); }
    button.textContent = "Pause";
    timer = setInterval(advance, FRAME_MS);
  });
  slider.addEventListener("input", () => { stop(); show(); });
  show();
  return make("section", { class: "film" }, make("h4", {}, "Film of the supervision steps"),
    make("p", { class: "detail" }, `Puzzle embedding: ${film.embedding}. ` +
      "Crosses: cells that this step changed. Dots: the border token EOS."),
    make("div", { class: "filmbar" }, button, slider, words, haltingCurve(steps)), stage);
}

function changeNote(number, changed) {
  if (!number) return "first step";
  return changed.length ? `${plural(changed.length, "cell")} changed` : "nothing changed";
}

function haltingCurve(steps) {
  const [width, height] = [160, 36];
  const x = (i) => steps.length > 1 ? (i / (steps.length - 1)) * width : width / 2;
  const points = steps.map((step, i) => `${x(i).toFixed(1)},${(height - step.halting * height).toFixed(1)}`).join(" ");
  const label = "Halting probability by step: " + steps.map((step) => percent(step.halting)).join(", ");
  const box = { viewBox: `-2 -2 ${width + 4} ${height + 4}`, width: width + 4, height: height + 4 };
  return makeSvg("svg", { ...box, class: "curve", role: "img", "aria-label": label },
    makeSvg("path", { class: "rule", d: `M0 0h${width}M0 ${height}h${width}` }), makeSvg("polyline", { points }));
}
