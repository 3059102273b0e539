// Light, dark, or as the system has it; remembered where the browser allows it.
import {el} from "viewer/core/dom";

const NAMES = {system: "as the system", light: "light", dark: "dark"};
const SIGNS = {system: "◐", light: "☀", dark: "☾"};

function remembered() {
  try {
    const theme = localStorage.getItem("dualform-theme");
    return theme in NAMES ? theme : "system";
  } catch {
    return "system";
  }
}

function apply(theme) {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("dualform-theme", theme);
  } catch {
    // a page without storage forgets the theme, which does no harm
  }
}

/** A button that goes through the three themes. */
export function themeButton() {
  const order = Object.keys(NAMES);
  let theme = remembered();
  const button = el("button", {type: "button", class: "icon-text", "data-test": "theme"});
  const show = () => {
    apply(theme);
    button.textContent = SIGNS[theme];
    button.title = `Colours: ${NAMES[theme]}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    show();
  });
  show();
  return button;
}
