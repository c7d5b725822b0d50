-- wrk: POST the file in BODY; print the summary as one line of JSON.
local file = assert(io.open(os.getenv("BODY"), "rb"))
wrk.body = file:read("*a")
file:close()
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "failed": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
