// Accuracy over training time, one line for each task.
import {lines} from "viewer/charts/lines";
import {el} from "viewer/core/dom";
import {number} from "viewer/core/format";
import {jobs} from "viewer/core/jobs";
import {taskColour} from "viewer/core/palette";
import {panel} from "viewer/panels/panel";

const HELP =
  "The share of test inputs the model got right at each snapshot of the training. In a run of several tasks, " +
  "a line that falls shows forgetting.";

function series(run, {tasks}) {
  return Object.entries(tasks).map(([task, values]) => ({
    label: task || "accuracy",
    values,
    colour: taskColour(run, task),
  }));
}

function rows({steps, tasks}) {
  const at = (k) => Object.entries(tasks).map(([task, values]) => [task || "accuracy", values[k]]);
  return steps.map((step, k) => ({step, ...Object.fromEntries(at(k))}));
}

function counts({inputs}) {
  const words = Object.entries(inputs ?? {}).map(
    ([task, count]) => `${number(count)} inputs${task ? ` of ${task}` : ""}`,
  );
  return words.length ? `Measured on ${words.join(" and ")}.` : "";
}

/** {element, stop}; the panel stays hidden in a run whose accuracy over time is not being measured. */
export function trainingPanel(run) {
  const body = el("div", {class: "keep-chart"});
  const card = panel({title: "Accuracy over training time", name: `${run.name}-accuracy`, help: HELP, body});
  card.element.dataset.test = "training";
  card.element.hidden = true;
  let drawn = false;
  const stop = jobs.subscribe(({accuracy, jobs: all}) => {
    const job = all.find(({name}) => name === "accuracy");
    card.element.hidden = !accuracy && (!job || job.done || Boolean(job.failed));
    if (accuracy && !drawn) drawn = draw(card, run, accuracy);
    else if (!accuracy && job && !job.done) card.busy(`${job.what} …`);
  });
  return {element: card.element, stop};
}

function draw(card, run, accuracy) {
  const chart = lines({
    x: accuracy.steps,
    series: series(run, accuracy),
    xlabel: "training step",
    ylabel: "accuracy",
    height: 190,
  });
  card.show([chart, el("p", {class: "muted-note"}, counts(accuracy))]);
  card.data(rows(accuracy));
  card.python(accuracy.python);
  return true;
}
