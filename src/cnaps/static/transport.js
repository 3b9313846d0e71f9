// How requests reach the server, how often, and where pictures are. The page without a server has its own.

export const send = (path, options) => fetch(path, options);
export const source = (id) => `/api/images/${id}`;
export const answerSource = (index) => `/api/answers/images/${index}`;
export const PACE = 200; // milliseconds from one question about the camera's picture to the next
