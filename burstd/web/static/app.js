// Says when the page can no longer be fetched again, and that it is as old as that. htmx fetches; this only watches.
"use strict";

let failing = null;

function connectionLost() {
  failing ??= new Date();
  const line = document.getElementById("connection");
  line.textContent = `burstd has not answered since ${failing.toLocaleTimeString()}: what is shown is from before. ` +
    "The page tries again every few seconds.";
  line.hidden = false;
}

function connectionBack() {
  failing = null;
  document.getElementById("connection").hidden = true;
}

document.addEventListener("htmx:error", (event) => {
  if (event.detail.ctx) connectionLost();
});
document.addEventListener("htmx:after:request", (event) => {
  if (event.detail.ctx.response.status < 400) connectionBack();
  else connectionLost();
});
