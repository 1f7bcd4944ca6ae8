-- lib/clock: the server's clock. No script uses a client's clock.
-- defines  now_ms(): ms since 1970, rounded down
local function now_ms()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
