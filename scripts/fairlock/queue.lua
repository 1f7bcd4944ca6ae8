-- fairlock/queue: Redisson's queue of waiters, and what tells live ones from dead ones in it.
--
-- Redisson's scores are a running sum of waits: a newcomer's is its predecessor's plus its own wait, a take subtracts the taker's from
-- all others, and whatever script comes next drops a head whose score has passed. A queue of ours alone needs none of that: liveness is
-- the client's, told by one sign of life for all its waiters, and scores matter only where a script of Redisson's would look first: at the head,
-- which it may drop, and at the tail, from which it counts on. Only a queue that Redisson's waiters share (its members are then more than
-- ours) is stamped through, which costs a step for each member. What always holds after a script of ours:
--
--   - the head's score is ahead of the clock, by half of its wait at least, so Redisson drops it only when none of us has looked for that long;
--   - no score is higher than the tail's: were the tail's in the past, so would be all, and Redisson would find the queue empty. What it tells
--     a newcomer, the time to the tail's score, is never negative: that would mean for ever to it;
--   - in a shared queue, one of ours has its own wait left when all of Redisson's before it have taken, and subtracted theirs.
--
-- In a queue of ours alone two steps keep the first two as they are, and do no more: entering at the end, and the granting of the lock to the head
-- (acquire's stand, tell's passOn). Whatever else changes the queue, or finds Redisson's in it, puts all to rights (mark). A newcomer of Redisson's is seen by the
-- next that enters, or by the next refresh, within a second: it stands at the end, with a wait of its own before it that suffices till then.
-- The lock's hash is KEYS[1].
--
-- uses     clock
-- KEYS[4]  queue: list of waiting ids, the next owner first
-- KEYS[5]  deadlines: sorted set of the same ids
-- KEYS[6]  ours: hash of those ids that are not Redisson's, each with its client and how long it may be silent, ms; if it may be given the lock while it
--          waits, also with the ttl that it asks for, ms, and when it came to stand there, by which the grants of one and of another time are told apart
-- KEYS[7]  signs of life: hash of clients, each with the server's time of its last; with what the queue was when we last marked it: "front",
--          the next owner, and "shared", if Redisson's waited too; and with "holder", one of ours that took the lock out of the queue
-- defines  parse(mine), patience(id), deadline(base, wait), drop(id), head(at), mark(at, fresh), taken(id, ttl), worn

-- parse reads what KEYS[6] has of an id: how long it may be silent and its client; if it may be given the lock, its ttl and its time.
local function parse(mine)
  if mine then
    local client, wait, ttl, since = string.match(mine, '^(%S+) (%d+) ?(%d*) ?(%d*)$')
    return tonumber(wait), client, tonumber(ttl), since
  end
end

-- patience is that of an id; nil for one of Redisson's.
local function patience(id)
  return parse(redis.call('hget', KEYS[6], id))
end

-- life is how long until id counts as dead, ms; not positive when it does. And its client, nil for one of Redisson's.
local function life(id, at)
  local wait, client = patience(id)
  if wait then
    return tonumber(redis.call('hget', KEYS[7], client) or 0) + wait - at, client
  end
  return tonumber(redis.call('zscore', KEYS[5], id) or 0) - at
end

-- Redisson's own wait, if the scores do not show a longer one; the time that one of Redisson's has at least to take the lock when it is next;
-- and the shortest wait of ours that is shown: our signs of life come once a second.
local theirs, grace, shortest = 300000, 5000, 3000
local worn = 500 -- so old must a sign of life be for an attempt to renew it

local freed = 0 -- the wait of one of ours that was next, and has gone since the last mark

-- drop takes a waiter out of the queue, wherever it stands.
local function drop(id)
  if redis.call('lindex', KEYS[4], 0) == id then
    local wait = patience(id)
    freed = wait and math.max(wait, shortest) or 0
    redis.call('lpop', KEYS[4])
    redis.call('zrem', KEYS[5], id)
  elseif redis.call('zrem', KEYS[5], id) == 1 then
    redis.call('lrem', KEYS[4], 0, id)
  end
  redis.call('hdel', KEYS[6], id)
end

local function deadline(base, wait)
  return base + math.max(wait, shortest)
end

-- stamp marks the head and the tail of a queue of ours alone.
local function stamp(at)
  local first, last = redis.call('lindex', KEYS[4], 0), redis.call('lindex', KEYS[4], -1)
  redis.call('zadd', KEYS[5], deadline(at, patience(first) or 0), first)
  if last ~= first then
    local highest = tonumber(redis.call('zrange', KEYS[5], -1, -1, 'withscores')[2])
    redis.call('zadd', KEYS[5], math.max(highest, deadline(at, patience(last) or 0)), last)
  end
end

-- stampAll marks all: each of ours has its own wait beyond those of Redisson's before it, and each of Redisson's keeps its distance to the one
-- before. fresh: the head has its time to take the lock before it.
local function stampAll(at, fresh)
  local base, last, shift = at, at, -freed -- now and the waits of Redisson's so far; the score before; and what that was moved by
  for i, id in ipairs(redis.call('lrange', KEYS[4], 0, -1)) do
    local score = tonumber(redis.call('zscore', KEYS[5], id))
    local wait = patience(id)
    local new = (score or last + theirs) + shift
    if wait then
      new = math.max(last, deadline(base, wait))
    elseif i > 1 then
      new = math.max(new, last + grace)
      base = base + math.max(theirs, new - last)
    else
      new = math.min(new, at + theirs)
      if fresh then
        new = math.max(new, at + grace)
      end
      base = base + theirs
    end
    if new ~= score then
      redis.call('zadd', KEYS[5], new, id)
    end
    last, shift = new, new - (score or new)
  end
end

-- prune forgets those of ours that Redisson has dropped.
local function prune()
  for _, id in ipairs(redis.call('hkeys', KEYS[6])) do
    if not redis.call('zscore', KEYS[5], id) then
      redis.call('hdel', KEYS[6], id)
    end
  end
  return redis.call('hlen', KEYS[6])
end

-- mark leaves the scores as the top of this file promises, whatever has changed. fresh: a head of Redisson's has become that, or been told that
-- the lock is free, just now.
local function mark(at, fresh)
  local waiting, ours = redis.call('zcard', KEYS[5]), redis.call('hlen', KEYS[6])
  local front = redis.call('lindex', KEYS[4], 0)
  if waiting == 0 or not front then
    redis.call('del', KEYS[4], KEYS[5], KEYS[6], KEYS[7])
    return
  end
  local was = redis.call('hmget', KEYS[7], 'front', 'shared')
  local gone = was[1] and was[1] ~= front and redis.call('hexists', KEYS[6], was[1]) == 1 and not redis.call('zscore', KEYS[5], was[1])
  if gone or ours > waiting then
    ours = prune() -- Redisson took the front away: it was one of ours, and others behind it may have been too
  end
  local shared = ours ~= waiting
  if shared or was[2] then -- those that were shared until now are brought down
    stampAll(at, fresh or redis.call('exists', KEYS[1]) == 1)
  else
    stamp(at)
  end
  freed = 0
  if ours == 0 then
    redis.call('del', KEYS[6], KEYS[7])
    return
  end
  if was[1] ~= front then
    redis.call('hset', KEYS[7], 'front', front)
  end
  if shared and not was[2] then
    redis.call('hset', KEYS[7], 'shared', '1')
  elseif was[2] and not shared then
    redis.call('hdel', KEYS[7], 'shared')
  end
end

-- head is the next owner, how long it is given, ms, and its client if it is one of ours; dead ones before it are dropped.
local function head(at)
  local fell = false
  while true do
    local id = redis.call('lindex', KEYS[4], 0)
    local left, client
    if id then
      left, client = life(id, at)
    end
    if not id or left > 0 or (fell and not client) then -- one of Redisson's has not been next before
      if fell then
        mark(at, true)
      end
      return id, left, client
    end
    drop(id)
    fell = true
  end
end

-- taken notes that one of ours holds the lock that stood in the queue, so that those behind it need not listen to Redisson.
local function taken(id, ttl)
  if redis.call('exists', KEYS[4]) == 0 then
    redis.call('del', KEYS[7])
    redis.call('hset', KEYS[7], 'holder', id)
    redis.call('pexpire', KEYS[7], ttl)
  elseif redis.call('exists', KEYS[7]) == 1 then
    redis.call('hset', KEYS[7], 'holder', id)
  end
end
