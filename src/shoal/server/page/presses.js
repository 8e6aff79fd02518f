// Keys and clicks: one after the other, each deciding only on what was on the screen when it was pressed.
import { say } from "/static/dom.js";

// Since when something is on the screen. A press has the time it was made at, however late the page hears of it.
export function makeScreen() {
  let since = Infinity;
  return {
    changed() {
      since = Infinity;
      requestAnimationFrame(() => (since = performance.now()));
    },
    wasSeen(event) {
      if (event.timeStamp >= since) return true;
      say("That was pressed before this was shown, so it was not done. Look, and press again.", true);
      return false;
    },
  };
}

// Things to do come one after the other, each on what the one before has left, however fast they are asked for.
export function inOrder() {
  let turn = Promise.resolve();
  return (does) => (turn = turn.then(() => does()).catch((error) => say(error.message, true)));
}

// Presses in their order. From one that `asks` until its question is answered no other counts: what is typed before the
// question is there must not be taken for commands.
export function makePresses() {
  const later = inOrder();
  let isAsking = false;
  return (event, does, { wasSeen = () => true, asks = false } = {}) => {
    if (isAsking) return null;
    isAsking = asks;
    return later(async () => {
      try {
        if (wasSeen(event)) await does();
      } finally {
        if (asks) isAsking = false;
      }
    });
  };
}
