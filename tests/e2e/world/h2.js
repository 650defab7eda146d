// An HTTP/2 origin: node h2.js CERTIFICATE_AND_KEY PORT.  Every answer says what was asked; /bytes/N has N bytes.
"use strict";
const http2 = require("http2");
const pem = require("fs").readFileSync(process.argv[2]);
const server = http2.createSecureServer({ key: pem, cert: pem, allowHTTP1: true });
server.on("request", (request, response) => {
  let bytes = 0;
  request.on("data", (data) => { bytes += data.length; });
  request.on("end", () => {
    if (request.url.startsWith("/bytes/")) {
      response.end(Buffer.alloc(Number(request.url.slice(7))));
      return;
    }
    const { method, url, httpVersion } = request;
    const authorization = request.headers.authorization || "";
    if (authorization) {
      const proof = require("crypto").createHash("sha256").update(authorization).digest("hex");
      response.end(JSON.stringify({ proof, authorization }));
      return;
    }
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ method, path: url, version: httpVersion, bytes }));
  });
});
server.listen(Number(process.argv[3]), "::");
