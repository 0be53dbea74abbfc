"use strict";
for (const button of document.querySelectorAll("button[data-copies]")) {
  const source = document.getElementById(button.dataset.copies);
  const label = button.textContent;
  const say = (text) => {
    button.textContent = text;
    setTimeout(() => { button.textContent = label; }, 1600);
  };
  const byHand = () => {
    getSelection().selectAllChildren(source);
    say(document.execCommand("copy") ? "Copied" : "Selected: press Ctrl-C");
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (!navigator.clipboard) { byHand(); return; }
    navigator.clipboard.writeText(source.textContent).then(() => say("Copied"), byHand);
  });
}
