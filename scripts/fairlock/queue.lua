-- fairlock/queue: Redisson's queue of waiters, and what tells live ones from dead ones in it.
--
-- Redisson's scores are a running sum of waits: a newcomer's is its predecessor's plus its own wait, a take subtracts the taker's from
-- all others, and whatever script comes next drops a head whose score has passed. A queue of ours alone needs none of that:
-- liveness is the client's, told by one sign of life for all its waiters, and scores matter only where a script of Redisson's would look first:
-- at the head, which it may drop, and at the tail, from which it counts on. Only a queue that Redisson's waiters share (its members are then more than
-- ours) is stamped through, which costs a step for each member.
--
-- KEYS[4]  queue: list of waiting ids, the next owner first
-- KEYS[5]  deadlines: sorted set of the same ids
-- KEYS[6]  ours: hash of the ids that are not Redisson's, each with its client and how long it may be silent, ms
-- KEYS[7]  signs of life: hash of clients, each with the server's time of its last
-- defines  now(), patience(id), drop(id), head(at), mark(at, subtract)

-- now is the server's clock, ms: no client's ever counts.
local function now()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- patience is how long one of ours may be silent, and its client; nil for one of Redisson's.
local function patience(id)
  local mine = redis.call('hget', KEYS[6], id)
  if mine then
    local client, wait = string.match(mine, '^(%S+) (%d+)$')
    return tonumber(wait), client
  end
end

local function dead(id, at)
  local wait, client = patience(id)
  if wait then
    local seen = redis.call('hget', KEYS[7], client)
    return not seen or tonumber(seen) + wait <= at
  end
  local score = redis.call('zscore', KEYS[5], id)
  return not score or tonumber(score) <= at
end

-- drop takes a waiter out of the queue, wherever it stands.
local function drop(id)
  if redis.call('zrem', KEYS[5], id) == 1 then
    if redis.call('lindex', KEYS[4], 0) == id then
      redis.call('lpop', KEYS[4])
    else
      redis.call('lrem', KEYS[4], 0, id)
    end
  end
  redis.call('hdel', KEYS[6], id)
end

-- head is the next owner; dead ones before it are dropped.
local function head(at)
  while true do
    local id = redis.call('lindex', KEYS[4], 0)
    if not id then
      return nil
    end
    if not dead(id, at) then
      return id
    end
    redis.call('lpop', KEYS[4])
    redis.call('zrem', KEYS[5], id)
    redis.call('hdel', KEYS[6], id)
  end
end

-- stamp gives one of ours a full deadline.
local function stamp(id, at)
  local wait = id and patience(id)
  if wait then
    redis.call('zadd', KEYS[5], 'xx', at + wait, id)
  end
end

-- Redisson's own wait, unless its score shows a longer one.
local theirs = 300000

-- stampAll gives each of ours its own wait and the waits ahead of it, and moves Redisson's behind it along; subtract is the
-- wait of one that has just left from the front.
local function stampAll(at, subtract)
  local floor, carry = at, -subtract
  for _, id in ipairs(redis.call('lrange', KEYS[4], 0, -1)) do
    local score = tonumber(redis.call('zscore', KEYS[5], id) or at)
    local wait = patience(id)
    if wait then
      floor = floor + wait
      carry = floor - score
    else
      floor = math.max(floor + theirs, score + carry)
    end
    if carry ~= 0 then
      redis.call('zadd', KEYS[5], 'xx', score + carry, id)
    end
  end
  for _, id in ipairs(redis.call('hkeys', KEYS[6])) do
    if not redis.call('zscore', KEYS[5], id) then
      redis.call('hdel', KEYS[6], id) -- Redisson dropped it
    end
  end
end

-- mark keeps the scores such that no script of Redisson's drops a live waiter. It comes after each change of the queue.
local function mark(at, subtract)
  local waiting = redis.call('zcard', KEYS[5])
  if waiting == 0 then
    redis.call('del', KEYS[6], KEYS[7])
  elseif redis.call('hlen', KEYS[6]) ~= waiting then
    stampAll(at, subtract)
  else
    stamp(redis.call('lindex', KEYS[4], 0), at)
    stamp(redis.call('lindex', KEYS[4], -1), at)
  end
end
