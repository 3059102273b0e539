// The spotlight on one input: what the model says, which training slots every layer attends to, and what if they were muted.
import {Agenda} from "viewer/agenda";
import {bars, curves} from "viewer/chart";
import {classRole, classSet} from "viewer/classes";
import {chosenLayer, layerPanels, perOf} from "viewer/layers";
import {pageOf} from "viewer/listing";
import {toggleSet} from "viewer/muting";
import {classColour} from "viewer/palette";
import {panel} from "viewer/panel";
import {reason} from "viewer/parts";
import {inputOf} from "viewer/requests";
import {state} from "viewer/state";
import {subjectPanel} from "viewer/subject";
import {attentionPanel, scrubberPanel, stepBanner} from "viewer/time";
import {trayOf} from "viewer/tray";
import {className, el} from "viewer/words";

const CURVES_HELP =
  "For each class, the highest attention weights of single training slots, downwards: " +
  "a class whose curve is high has the slots most like this input.";
const TOTALS_HELP = "Attention summed over all slots of a class. Click a bar to mute the class.";

const isDrawn = (now) => typeof now.input === "string";

/** The paper's two charts for the chosen layer; they know what the model said, to mark its class. */
function chartPanels(run) {
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
  let said = null,
    answer = null,
    layer = "";

  const common = (k) => ({
    label: className(run, k),
    name: String(run.classes[k].name),
    colour: classColour(run, k),
    soft: classColour(run, k, true),
    link: {class: k},
    emphasis: said ? classRole(run, k, said) : undefined,
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
    show: (given) => [(answer = given), (layer = given.layer), draw()],
    predicted: (given) => [(said = given), draw()],
    busy: (text) => both.forEach((card) => card.busy(text)),
    fail: (message) => both.forEach((card) => card.fail(message)),
    clear: () => both.forEach((card) => card.show([])),
  };
}

// Without an input there is nothing to show: take the first of the list.
async function chooseFirst(now) {
  const {inputs} = await pageOf(now, 0),
    {page, input} = state.get();
  if (inputs.length && page === "spotlight" && input === null)
    state.set({input: inputs[0].index, start: 0}, {replace: true});
}

// The weights due to classes and tasks are summed up beforehand; to ask earlier would only be refused.
const prepared = ({mute}) =>
  mute.every((set) => Object.keys(set).every((name) => name === "label" || name === "task")) ? "mute" : null;

function plan(run, agenda, parts) {
  const {subject, layers, charts, attention, scrubber, tray, banner} = parts;
  const spot = (now, layer) => {
    const input = inputOf(now);
    return input && ["spotlight", {input, layer, per: perOf(run, now)}];
  };
  const many =
    (name, ...targets) =>
    (argument) =>
      targets.forEach((target) => target[name](argument));
  agenda.add({
    live: true,
    lane: "quick",
    what: "asking the model …",
    wanted: (now) => inputOf(now) && ["predict", {input: inputOf(now), step: now.step}],
    show: (answer) => {
      subject.show(answer);
      banner.show(answer);
    },
    busy: subject.busy,
    fail: subject.fail,
    clear: subject.clear,
  });
  // Everything else is about the finished run, also where the prediction is of an earlier step.
  const marked = many("predicted", charts, tray, scrubber, ...layers);
  agenda.add({
    live: true,
    lane: "quick",
    wanted: (now) => inputOf(now) && ["predict", {input: inputOf(now)}],
    show: marked,
    clear: () => marked(null),
  });
  agenda.add({
    live: true,
    what: "reading keys …",
    wanted: (now) => spot(now, chosenLayer(run, now)),
    show: (answer) => {
      charts.show(answer);
      attention.show(answer);
      layers.find(({layer}) => layer.name === answer.layer)?.show(answer);
    },
    busy: many("busy", charts, attention),
    fail: many("fail", charts, attention),
    clear: many("clear", charts, attention),
  });
  agenda.add({
    live: true,
    lane: "quick",
    what: "taking slots away …",
    needs: prepared,
    wanted: (now) =>
      now.mute.length && !run.cannot.mute && inputOf(now) ? ["mute", {input: inputOf(now), mute: now.mute}] : null,
    show: tray.show,
    busy: tray.busy,
    fail: tray.fail,
    clear: tray.clear,
  });
  for (const {layer, show: shown, busy, fail, clear} of layers) {
    agenda.add({what: "reading keys …", wanted: (now) => spot(now, layer.name), show: shown, busy, fail, clear});
  }
  agenda.add({
    what: "asking the model as it was …",
    wanted: (now) =>
      run.cannot.time || run.cannot.predict || !inputOf(now) ? null : ["history", {input: inputOf(now)}],
    show: scrubber.show,
    busy: scrubber.busy,
    fail: scrubber.fail,
    clear: scrubber.clear,
  });
}

export function show(container, run) {
  const agenda = new Agenda();
  const parts = {
    subject: subjectPanel(run),
    layers: layerPanels(run),
    charts: chartPanels(run),
    attention: attentionPanel(run),
    scrubber: scrubberPanel(run),
    tray: trayOf(run),
    banner: stepBanner(run),
  };
  const {subject, layers, charts, attention, scrubber, tray, banner} = parts;
  container.replaceChildren(
    banner.element,
    el(
      "div",
      {class: "columns spotlight"},
      el("div", {class: "stack"}, subject.element),
      el(
        "div",
        {class: "stack layers"},
        layers.map(({element}) => element),
      ),
      el("div", {class: "stack"}, charts.elements),
    ),
    el("div", {class: "over-time"}, attention.element, scrubber.element),
    tray.element,
  );
  plan(run, agenda, parts);
  return {
    update(now, before) {
      if (now.input === null) chooseFirst(now).catch((error) => subject.fail(error.message));
      for (const part of [subject, ...layers, attention, scrubber, tray, banner]) part.update(now);
      const drawing = isDrawn(now) && before !== null && isDrawn(before) && now.input !== before.input;
      agenda.update(now, {drawing});
    },
    close: () => [agenda.close(), subject.close()],
  };
}
