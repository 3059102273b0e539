// Attention by class in one layer: the highest weights of each class, and their sums.
import {bars} from "viewer/charts/bars";
import {curves} from "viewer/charts/curves";
import {className, classRole, classSet} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {reason} from "viewer/core/elements";
import {toggleSet} from "viewer/core/mute_sets";
import {classColour} from "viewer/core/palette";
import {panel} from "viewer/panels/panel";

const CURVES_HELP =
  "For each class, the highest attention weights of single training slots, downwards: " +
  "a class whose curve is high has the slots most like this input.";
const TOTALS_HELP = "Attention summed over all slots of a class. Click a bar to mute the class.";

/** The paper's two charts for the chosen layer; they know what the model said, to mark its class. */
export function chartPanels(run) {
  const curvePanel = panel({
    title: "Highest weights per class",
    name: "curves",
    help: CURVES_HELP,
    body: el("div", {class: "keep-tall"}),
  });
  const totalPanel = panel({
    title: "Attention per class",
    name: "totals",
    help: TOTALS_HELP,
    body: el("div", {class: "keep-tall"}),
  });
  curvePanel.element.dataset.test = "curves";
  totalPanel.element.dataset.test = "totals";
  const both = [curvePanel, totalPanel];
  let prediction = null,
    answer = null,
    layer = "";

  const common = (k) => ({
    label: className(run, k),
    name: String(run.classes[k].name),
    colour: classColour(run, k),
    soft: classColour(run, k, true),
    link: {class: k},
    emphasis: prediction ? classRole(run, k, prediction) : undefined,
  });
  function drawCurves() {
    if (answer.absent?.curves) return curvePanel.show(reason(answer.absent.curves));
    const series = answer.curves.map(({class: k, scores}) => ({...common(k), values: scores}));
    curvePanel.show(
      curves({
        series,
        x: "rank",
        y: "attention weight",
        caption: `Highest attention weights of each class in ${layer}`,
      }),
    );
    const rows = ({class: k, scores}) =>
      scores.map((weight, rank) => ({class: className(run, k), rank: rank + 1, weight}));
    curvePanel.data(answer.curves.flatMap(rows));
  }
  function drawTotals() {
    if (answer.absent?.totals) return totalPanel.show(reason(answer.absent.totals));
    const clicked = (k) => (run.cannot.mute ? undefined : () => toggleSet(classSet(run, k)));
    const rows = answer.totals.map(({class: k, total}) => ({...common(k), value: total, onclick: clicked(k)}));
    totalPanel.show(bars({rows, unit: "attention", caption: `Attention per class in ${layer}`}));
    totalPanel.data(answer.totals.map(({class: k, total}) => ({class: className(run, k), total})));
  }
  function draw() {
    if (!answer) return;
    drawCurves();
    drawTotals();
    for (const card of both) card.python(answer.python);
  }
  return {
    elements: both.map(({element}) => element),
    show: (next) => [(answer = next), (layer = next.layer), draw()],
    predicted: (next) => [(prediction = next), draw()],
    busy: (text) => both.forEach((card) => card.busy(text)),
    fail: (message) => both.forEach((card) => card.fail(message)),
    clear: () => both.forEach((card) => card.show([])),
  };
}
