// Training again without what is muted: the button in the trays, how far it is, and when its model can be asked.
//
//   const training = trainAgain(run, () => pending.update(state.get()));    // called when there is a model to ask
//   training.update(now); training.has(now); training.tell(answer); training.close();
import {ask, inReport} from "viewer/core/ask";
import {setName} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button} from "viewer/core/elements";
import {duration, number} from "viewer/core/format";
import {jobs} from "viewer/core/jobs";
import {canonical} from "viewer/core/requests";

const NO_EXAMPLES =
  "A stretch of time or of a text is no set of examples: it can be muted, but not left out of a training.";
const isExamples = (set) => !("steps" in set || "positions" in set);

/** One text for the same sets, in whatever order. */
function keyOf(sets) {
  const sorted = (set) => Object.fromEntries(Object.entries(set).map(([name, values]) => [name, [...values].sort()]));
  return sets
    .map((set) => canonical(sorted(set)))
    .sort()
    .join();
}

export function trainAgain(run, changed) {
  const element = el("div", {class: "row train-again", "data-test": "train-again", "data-not-saved": ""});
  let sets = [],
    training = jobs.latest()?.training ?? null,
    asked = null, // the key of what was asked for a moment ago
    problem = null,
    said = null;

  async function send(mute, stop) {
    problem = null;
    asked = stop ? null : keyOf(mute);
    draw();
    try {
      ({training} = await ask("train", {mute, stop}));
    } catch (error) {
      problem = error.message;
    }
    asked = null;
    draw();
    jobs.start();
  }

  const has = ({mute}) =>
    !inReport && mute.length > 0 && Boolean(training?.retrained.some((known) => keyOf(known) === keyOf(mute)));
  const quiet = (text, attributes = {}) => el("span", {class: "quiet-text", ...attributes}, text);

  function underWay({mute, step, steps, seconds}) {
    const own = keyOf(mute) === keyOf(sets);
    const names = mute.map((set) => setName(run, set)).join(" and ");
    const left = seconds === null ? "" : `, about ${duration(seconds)} left`;
    const bar = el("progress", {class: "train-progress", max: steps || 1, "aria-label": "Training again"});
    if (steps) bar.value = step;
    return [
      quiet(own ? "Training again …" : `Training again without ${names} …`),
      bar,
      quiet(steps ? `${number(step)} of ${number(steps)} steps${left}` : "finding where it begins to differ"),
      button("Stop", () => send(mute, true), {"data-test": "train-stop"}),
    ];
  }

  function content() {
    if (run.cannot_train) return [quiet(`Cannot train again: ${run.cannot_train}.`)];
    if (!sets.every(isExamples)) return [quiet(NO_EXAMPLES)];
    const now = training?.now ?? null;
    if (now && !now.failed) return underWay(now);
    if (has({mute: sets})) return said ? [quiet(said, {"data-test": "retrained"})] : [];
    const mine = now && keyOf(now.mute) === keyOf(sets);
    const failed = problem ?? (mine ? now.failed : null);
    const time = training?.seconds ?? null;
    return [
      button("Train again without these", () => send(sets, false), {
        "data-test": "train",
        disabled: asked !== null,
        title: "The true answer: the same training, without these examples from the beginning",
      }),
      time !== null && !failed && quiet(`about ${duration(time)}`, {"data-test": "train-time"}),
      failed && el("span", {class: "failed-text", role: "status"}, failed),
    ];
  }

  function draw() {
    element.hidden = inReport || !sets.length || Boolean(run.cannot.mute);
    if (element.hidden) return;
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.test : null;
    element.replaceChildren(...content().filter(Boolean));
    if (focused) element.querySelector(`[data-test="${focused}"]`)?.focus(); // it was drawn anew under the keyboard
  }

  const stop = jobs.subscribe((answer) => {
    const before = has({mute: sets});
    training = answer.training;
    draw();
    if (has({mute: sets}) !== before) changed();
  });

  return {
    element,
    has,
    update({mute}) {
      if (keyOf(mute) !== keyOf(sets)) problem = said = null;
      sets = mute;
      draw();
    },
    /** Say what the training took. */
    tell(answer) {
      said = answer && `Trained again: ${number(answer.steps)} steps in ${duration(answer.seconds)}.`;
      draw();
    },
    fail(message) {
      said = message;
      draw();
    },
    close: stop,
  };
}
