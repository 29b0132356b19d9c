// What was taught and asked, with every step back and forth. Nothing here knows the page or the server.
//
// A class is { key, name, pictures }, a question { picture, accepted }, with the key of the class that was accepted
// as the answer. These are never changed, only replaced, so an earlier state is simply kept. A picture is
// { key, blob, title } and, once the server has answered, what it said; it is the same object wherever it appears.

const STEPS = 200;

let now = { classes: [], asked: [] };
let past = []; // { state, said, step }
let future = [];
let listener = () => {};

export const current = () => now;
export const listen = (tell) => (listener = tell);
export const undoable = () => past.at(-1)?.said;
export const redoable = () => future.at(-1)?.said;
export const newKey = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
export const newPicture = (blob, title) => ({ key: newKey(), blob, title });

export const classAt = (key) => now.classes.find((group) => group.key === key);
export const classNamed = (name) => now.classes.find((group) => group.name === name);
export const classWith = (picture) => now.classes.find((group) => group.pictures.includes(picture));
export const taught = () => now.classes.filter((group) => group.pictures.length);

/** What a classifier depends on: equal for equal pictures in classes of equal names. */
export const signature = () => JSON.stringify(taught().map((group) => [group.name, group.pictures.map((p) => p.key)]));

/** What the person has said that a picture is: a class that it was taught to, or an answer that was accepted. */
export const settled = ({ picture, accepted }) => classWith(picture) ?? (accepted ? classAt(accepted) : undefined);

/** Goes to another state. Changes of one `step`, such as the pictures of one drop, are undone together. */
export function change(next, said, step = {}) {
  if (past.at(-1)?.step === step) past.at(-1).said = said;
  else past = [...past, { state: now, said, step }].slice(-STEPS);
  future = [];
  enter(next);
}

/** Goes to a state that is no step of the person: what was kept, or what was left after a refusal. */
export function enter(next) {
  now = { ...now, ...next };
  listener();
}

export function undo() {
  const { state, said } = past.pop();
  future.push({ state: now, said });
  enter(state);
  return said;
}

export function redo() {
  const { state, said } = future.pop();
  past.push({ state: now, said });
  enter(state);
  return said;
}

export const withClass = (group) => ({ classes: [...now.classes, group] });
export const withoutClass = (key) => ({ classes: now.classes.filter((group) => group.key !== key) });
export const changed = (key, changes) => ({
  classes: now.classes.map((group) => (group.key === key ? { ...group, ...changes } : group)),
});

/** The classes after pictures were put into one, each [picture, class key]; they leave the class they were in. */
export function withPictures(pairs) {
  const moved = new Map(pairs);
  const classes = now.classes.map((group) => {
    const stay = group.pictures.filter((picture) => !moved.has(picture) || moved.get(picture) === group.key);
    const come = pairs.filter(([picture, key]) => key === group.key && !group.pictures.includes(picture));
    return { ...group, pictures: [...stay, ...come.map(([picture]) => picture)] };
  });
  return { classes };
}

export const withoutPicture = (picture) => withPictures([[picture, null]]);
export const withoutQuestion = (picture) => ({ asked: now.asked.filter((each) => each.picture !== picture) });
