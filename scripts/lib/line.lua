-- lib/line: the clients of this library that wait for a name, in line.
-- doc/decisions/line.md has the rules.
--
-- The line is a sorted set. A member is a client's place; its score is the server's time, in ms, at
-- which the client came or was last woken. A listener is a client that also hears the common
-- channel. It has a second member, "*" and its place, whose score is minus the time of its last
-- sign of life. The line is only a help, so a key of another type counts as an empty line.
-- uses     lib/clock
-- defines  take_place(line, place, since): the score of the place, and 1 if the client must listen;
--          renew_place(line, place): move it to the end of the line;
--          give_up_place(line, place)

local function take_place(line, place, since)
  local now = now_ms()
  local taken
  if since == '0' then
    taken = redis.pcall('zadd', line, 'nx', now, place)
  else
    taken = redis.pcall('zadd', line, since, place)
  end
  if type(taken) == 'table' then
    return 0, 1 -- a full Redis, or a key of another type: no line
  end
  redis.pcall('zremrangebyscore', line, 3000 - now, '(0')
  local mark, listens = '*' .. place, 0
  if redis.call('zscore', line, mark) or redis.call('zcount', line, '-inf', '(0') < 2 then
    redis.call('zadd', line, -now, mark)
    listens = 1
  end
  redis.call('pexpire', line, 3000)
  local score = tonumber(redis.call('zscore', line, place))
  if score > now then -- the clock was set back: until then others would come first, again and again
    redis.call('zadd', line, now, place)
    score = now
  end
  return score, listens
end

local function renew_place(line, place)
  redis.pcall('zadd', line, 'xx', now_ms(), place)
end

local function give_up_place(line, place)
  redis.pcall('zrem', line, place, '*' .. place)
end
