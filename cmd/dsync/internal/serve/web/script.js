"use strict";
const element = id => document.getElementById(id);
let source, heard = Date.now();

// merge updates an old node to a new node. Equal parts stay, such as selected text or a pressed button.
const merge = (old, now) => {
  if (old.isEqualNode(now)) return;
  const parts = [...old.childNodes], others = [...now.childNodes];
  if (parts.length > 0 && parts.length === others.length && old.cloneNode(false).isEqualNode(now.cloneNode(false))) {
    parts.forEach((part, i) => merge(part, others[i]));
  } else {
    old.replaceWith(now);
  }
};

const open = () => {
  source?.close();
  source = new EventSource("events" + location.search);
  source.onmessage = event => {
    const now = element("locks").cloneNode(false);
    now.innerHTML = JSON.parse(event.data); // made by a template that escapes all names
    merge(element("locks"), now);
    heard = Date.now();
  };
  source.onerror = () => { // the browser recovers from most errors by itself
    if (source.readyState === EventSource.CLOSED && !document.hidden) setTimeout(open, 5000);
  };
};

// A browser has six connections to a server, so a hidden page releases its connection for other pages.
document.addEventListener("visibilitychange", () => document.hidden ? source.close() : open());

setInterval(() => {
  const seconds = Math.round((Date.now() - heard) / 1000);
  element("age").textContent = seconds < 5 ? "live" : `nothing new for ${seconds} s`;
  element("age").className = seconds > 15 ? "late" : "";
}, 500);

document.addEventListener("click", event => {
  const dialog = element("release"), button = event.target.closest("button.release");
  if (button) {
    const form = dialog.querySelector("form");
    form.reset();
    form.action = button.formAction;
    element("what").textContent = [...button.closest("tr").cells].slice(0, -1).map(cell => cell.textContent).join("  ");
    dialog.showModal();
  } else if (event.target.id === "keep") {
    dialog.close();
  }
});
open();
