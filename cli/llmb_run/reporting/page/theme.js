"use strict";
// Colors as the system has them, until somebody chooses.

{
  const choices = ["auto", "light", "dark"];
  const button = at("theme");
  const show = (choice) => {
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    button.textContent = `Colors: ${choice}`;
  };
  let chosen = "auto";
  button.addEventListener("click", () => {
    chosen = choices[(choices.indexOf(chosen) + 1) % choices.length];
    show(chosen);
  });
  show(chosen);
}
