-- lib/clock: the server's clock: no client's ever counts.
-- defines  now(): ms, rounded down
local function now()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
