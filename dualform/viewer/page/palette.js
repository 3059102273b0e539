// Colours of classes, tasks and roles, as CSS variables so that they follow the theme (style.css has the values).
//
//   bar.style.fill = classColour(run, 3);          // "var(--class-3)"
//   name.style.color = PREDICTED;                  // "var(--predicted)"
const CLASSES = 20,
  TASKS = 4;

/** What an input was taken for, what it is, and both at once: the prediction is right. */
export const PREDICTED = "var(--predicted)";
export const TRUE = "var(--true)";
export const BOTH = "var(--both)";
export const ROLES = {predicted: PREDICTED, true: TRUE, both: BOTH};

/** The colour of class `k`; a second task has the same hues, lighter. */
export function classColour(run, k) {
  const row = run?.classes?.[k];
  if (!row) return Number.isInteger(k) ? `var(--class-${k % CLASSES})` : "var(--quiet)";
  const task = Math.max(0, taskNumber(run, row.task));
  const before = run.classes.slice(0, k).filter((other) => other.task === row.task).length;
  return `var(--class-${((task % 2) * 10 + (before % 10)) % CLASSES})`;
}

/** The colour of a task, by name, number or row of `run.tasks`. */
export function taskColour(run, task) {
  return `var(--task-${Math.max(0, taskNumber(run, task?.name ?? task)) % TASKS})`;
}

function taskNumber(run, task) {
  return Number.isInteger(task) ? task : (run?.tasks ?? []).findIndex((row) => row.name === task);
}
