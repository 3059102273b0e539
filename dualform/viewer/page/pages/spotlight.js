// The spotlight on one input: what the model says, which training slots every layer attends to, and what if they were muted.
import {el} from "viewer/core/dom";
import {pageOf} from "viewer/core/input_list";
import {Agenda} from "viewer/core/pending_requests";
import {inputOf} from "viewer/core/requests";
import {state} from "viewer/core/state";
import {chartPanels} from "viewer/panels/class_charts";
import {subjectPanel} from "viewer/panels/input";
import {chosenLayer, layerPanels, perOf} from "viewer/panels/layers";
import {trayOf} from "viewer/panels/mute_tray";
import {attentionPanel, scrubberPanel, stepBanner} from "viewer/panels/time";

const isDrawn = (now) => typeof now.input === "string";

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
