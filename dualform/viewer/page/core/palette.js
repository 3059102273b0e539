// Colours of roles and tasks, as CSS variables so that they follow the theme (style.css has the values).
//
//   name.style.color = PREDICTED;                  // "var(--predicted)"
//   bar.style.fill = taskColour(run, "mnist");     // "var(--task-0)"
//
// A class has no colour of its own: ten of them cannot be told apart, and would be taken for what was predicted or is true.
const TASKS = 4;

/** What an input was taken for, what it is, and both at once: the prediction is right. */
export const PREDICTED = "var(--predicted)";
export const TRUE = "var(--true)";
export const BOTH = "var(--both)";
export const ROLES = {predicted: PREDICTED, true: TRUE, both: BOTH};

/** The colour of a task, by name, number or row of `run.tasks`; `soft` beside what has a role. */
export function taskColour(run, task, soft = false) {
  return `var(--task-${Math.max(0, taskNumber(run, task?.name ?? task)) % TASKS}${soft ? "-soft" : ""})`;
}

/** The colour of class `k` where it has no role: its task's in a run of several, else null. */
export function classColour(run, k, soft = false) {
  return run.tasks.length > 1 && run.classes[k] ? taskColour(run, run.classes[k].task, soft) : null;
}

function taskNumber(run, task) {
  return Number.isInteger(task) ? task : (run?.tasks ?? []).findIndex((row) => row.name === task);
}
