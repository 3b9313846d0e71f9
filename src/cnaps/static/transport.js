// How requests reach the server, and where pictures are. The page without a server has its own.

export const send = (path, options) => fetch(path, options);
export const source = (id) => `/api/images/${id}`;
