// Outputs of the model, classes of the run, and the sets of slots that stand for them.
//
// An output is a number the model may say; a class is a row of `run.classes`, which has a task as well as a label. In a run
// of several tasks an output belongs to a class only once the task is known.
import {classColour, ROLES} from "viewer/core/palette";

/** The name of class `k`: "3" or, in a run of several tasks, "mnist 3". */
export function className(run, k) {
  const row = run?.classes?.[k];
  if (!row) return String(k ?? "–");
  return row.task !== null && row.task !== undefined && (run.tasks?.length ?? 0) > 1
    ? `${row.task} ${row.name}`
    : String(row.name);
}

/** The name of output `k`, as the model of this task says it. */
export function outputName(run, task, k) {
  if (k === null || k === undefined) return "unknown";
  const names = run.outputs?.[task ?? ""] ?? run.outputs?.[""];
  if (names || !run.outputs) return String(names?.[k] ?? k);
  return [...new Set(Object.values(run.outputs).map((list) => list?.[k] ?? k))].join(" / "); // a drawing may be of any task
}

/** The class of output `k`, or null if none or several would do. */
export function outputClass(run, task, k) {
  const fits = ({label, task: own}) => label === k && (task === null || task === undefined || own === task);
  const first = run.classes.findIndex(fits);
  return first >= 0 && run.classes.findLastIndex(fits) === first ? first : null;
}

/** Names and roles of all outputs of an answer: [{label, link, emphasis, output}]. */
export function outputRows(run, {task = null, label = null, predicted = null}, count) {
  return Array.from({length: count}, (_, k) => {
    const number = outputClass(run, task, k);
    return {
      label: outputName(run, task, k),
      link: number === null ? null : {class: number},
      emphasis: roleOf(k, label, predicted),
      output: k,
    };
  });
}

function roleOf(k, label, predicted) {
  if (k === predicted) return k === label ? "both" : "predicted";
  return k === label ? "true" : undefined;
}

/** The role of class `k` for an input: what it is, what it was taken for, or both. */
export function classRole(run, k, {class: own, task, predicted}) {
  const taken = predicted === null || predicted === undefined ? null : outputClass(run, task ?? null, predicted);
  if (k === taken) return k === own ? "both" : "predicted";
  return k === own ? "true" : undefined;
}

/** The colour that marks class `k` for an input: its role's, or else its task's; null if it has neither. */
export function classMark(run, k, prediction) {
  const role = prediction && classRole(run, k, prediction);
  return role ? ROLES[role] : classColour(run, k);
}

export function classSet(run, k) {
  const {task, label} = run.classes[k];
  return run.tasks.length > 1 ? {label: [label], task: [task]} : {label: [label]};
}

export function taskSet(name) {
  return {task: [name]};
}

/** What a set of muted slots is, for people: "class 3", "task mnist", "image 4, 7", "steps 100 to 199". */
export function setName(run, set) {
  const {label, task, id, steps, positions, ...others} = set;
  if (steps) return `steps ${steps[0]} to ${steps[1] - 1}`;
  if (positions) return `positions ${positions[0]} to ${positions[1] - 1}`;
  if (id) return id.length > 4 ? `${id.length} training examples` : `training example ${id.join(", ")}`;
  if (label && !task && run.tasks.length > 1) return `label ${label.join(", ")} of every task`;
  if (label && !Object.keys(others).length)
    return `class ${label.map((value) => labelName(run, task?.[0], value)).join(", ")}`;
  if (task) return `task ${task.join(", ")}`;
  return Object.entries(set)
    .map(([name, values]) => `${name} ${values.join(", ")}`)
    .join(", ");
}

function labelName(run, task, label) {
  const number = run.classes.findIndex((row) => row.label === label && (task === undefined || row.task === task));
  return number < 0 ? String(label) : className(run, number);
}
