-- fairlock/queue: the wait queue of Redisson's fair lock, and which of its waiters are dead.
--
-- Redisson gives each waiter a score, the time at which it counts as dead: the score of the waiter
-- before it plus its own timeout. A waiter that takes the lock subtracts its timeout from all other
-- scores. Every script of Redisson first removes a head whose score has passed. A queue without
-- Redisson's waiters needs none of that: a client sends one heartbeat for all its waiters, and a
-- waiter is dead when that heartbeat is older than its timeout. Scores then matter only where
-- Redisson reads them: at the head, which it may remove, and at the tail, to which it adds. A mixed
-- queue, one with waiters of Redisson (it has more members than KEYS[7]), gets all its scores
-- rewritten, at a cost for each member. After every script of ours:
--
--   - The head's score is ahead of the clock by at least half of its timeout. Redisson removes the
--     head only if no client of ours has looked at the queue for that long.
--   - No score exceeds the tail's. If the tail's score has passed, all scores have, and Redisson
--     finds the queue empty. So a newcomer of Redisson never computes a negative wait from the
--     tail's score, which would mean "forever" to it.
--   - In a mixed queue, a waiter of ours has its whole timeout left after all of Redisson's waiters
--     before it took the lock and subtracted their timeouts.
--
-- Two steps in a queue without Redisson's waiters preserve the first two rules by themselves: a
-- newcomer at the tail (enqueue in fairlock/acquire) and a grant to the head (pass in
-- fairlock/tell). After any other change, and when Redisson's waiters are found, call restamp. The
-- next newcomer of ours, or the next refresh, at most a second later, finds a newcomer of Redisson.
-- That one stands at the tail, and its own timeout is enough until then.
--
-- A key of another type raises an error and is left alone. So every function here reads a key with
-- a command of its type before it deletes it or sets its TTL. The lock hash is KEYS[1].
--
-- uses     clock
-- KEYS[5]  queue: list of waiting ids, the next owner first
-- KEYS[6]  deadlines: sorted set of the same ids
-- KEYS[7]  our waiters: hash of the waiting ids that are not Redisson's, each with its client and
--          its timeout, ms; if it can be granted the lock, also with the TTL that it asks for, ms,
--          and the time at which it joined the queue, which tells one stay in the queue from another
-- KEYS[8]  heartbeats: hash of clients, each with the server time of its last heartbeat. More fields:
--          "id ..." for the client id of each (its owner ids begin with that), "front" and "shared"
--          (the head, and whether the queue was mixed, at the last restamp), and "holder" (the id of
--          a waiter of ours that took the lock)
-- defines  parse(entry), waiter(id), deadline(base, timeout), remove(id), clear(),
--          restamp(at, fresh), head(at), note_holder(id, ttl), heartbeat_age

-- parse reads an entry of KEYS[7]: the timeout and the client; of a waiter that can be granted the
-- lock, also the TTL and the time at which it joined.
local function parse(entry)
  if entry then
    local client, timeout, ttl, since = string.match(entry, '^(%S+) (%d+) ?(%d*) ?(%d*)$')
    return tonumber(timeout), client, tonumber(ttl), since
  end
end

-- waiter is what parse reads of an id; nil of one of Redisson's.
local function waiter(id)
  return parse(redis.call('hget', KEYS[7], id))
end

-- remaining is how long until id counts as dead, ms, 0 or less when it does; and its client, nil of
-- one of Redisson's.
local function remaining(id, at)
  local timeout, client = waiter(id)
  if timeout then
    return tonumber(redis.call('hget', KEYS[8], client) or 0) + timeout - at, client
  end
  return tonumber(redis.call('zscore', KEYS[6], id) or 0) - at
end

local redisson_timeout = 300000 -- Redisson's own default, used where the scores show no longer one
local redisson_grace = 5000 -- a waiter of Redisson that becomes the head has at least so long to take the lock
local shortest_timeout = 3000 -- our scores show no shorter one: heartbeats come once a second
local heartbeat_age = 500 -- an attempt renews a heartbeat that is older

local freed = 0 -- the timeout of a head of ours that was removed since the last restamp

-- remove takes a waiter out of the queue, wherever it stands. The set comes first: if that key has
-- another type, nothing was removed yet.
local function remove(id)
  if redis.call('lindex', KEYS[5], 0) == id then
    local timeout = waiter(id)
    redis.call('zrem', KEYS[6], id)
    redis.call('lpop', KEYS[5])
    freed = timeout and math.max(timeout, shortest_timeout) or 0
  elseif redis.call('zrem', KEYS[6], id) == 1 then
    redis.call('lrem', KEYS[5], 0, id)
  end
  redis.call('hdel', KEYS[7], id)
end

-- clear deletes what an empty queue has left behind.
local function clear()
  if redis.call('exists', KEYS[6], KEYS[7], KEYS[8]) == 0 then
    return
  end
  redis.call('zcard', KEYS[6])
  redis.call('hlen', KEYS[7])
  redis.call('hlen', KEYS[8])
  redis.call('del', KEYS[6], KEYS[7], KEYS[8])
end

local function deadline(base, timeout)
  return base + math.max(timeout, shortest_timeout)
end

-- stamp_ends writes the scores of the head and the tail, in a queue without Redisson's waiters.
local function stamp_ends(at)
  local first, last = redis.call('lindex', KEYS[5], 0), redis.call('lindex', KEYS[5], -1)
  redis.call('zadd', KEYS[6], deadline(at, waiter(first) or 0), first)
  if last ~= first then
    local highest = tonumber(redis.call('zrange', KEYS[6], -1, -1, 'withscores')[2])
    redis.call('zadd', KEYS[6], math.max(highest, deadline(at, waiter(last) or 0)), last)
  end
end

-- stamp_all writes all scores of a mixed queue. A waiter of ours gets its timeout beyond those of
-- Redisson's waiters before it. A waiter of Redisson keeps its distance to the one before it.
-- fresh: the head has its whole time to take the lock left.
local function stamp_all(at, fresh)
  local base = at -- now, plus the timeouts of Redisson's waiters so far
  local last, shift = at, -freed -- the score before, and by how much that was moved
  for i, id in ipairs(redis.call('lrange', KEYS[5], 0, -1)) do
    local score = tonumber(redis.call('zscore', KEYS[6], id))
    local timeout = waiter(id)
    local new = (score or last + redisson_timeout) + shift
    if timeout then
      new = math.max(last, deadline(base, timeout))
    elseif i > 1 then
      new = math.max(new, last + redisson_grace)
      base = base + math.max(redisson_timeout, new - last)
    else
      new = math.min(new, at + redisson_timeout)
      if fresh then
        new = math.max(new, at + redisson_grace)
      end
      base = base + redisson_timeout
    end
    if new ~= score then
      redis.call('zadd', KEYS[6], new, id)
    end
    last, shift = new, new - (score or new)
  end
end

-- prune deletes the entries of those waiters of ours that Redisson removed, and counts the others.
local function prune()
  for _, id in ipairs(redis.call('hkeys', KEYS[7])) do
    if not redis.call('zscore', KEYS[6], id) then
      redis.call('hdel', KEYS[7], id)
    end
  end
  return redis.call('hlen', KEYS[7])
end

-- restamp restores the rules at the top of this file, whatever has changed. fresh: a head of
-- Redisson just became the head, or was just told that the lock is free.
local function restamp(at, fresh)
  local waiting, ours = redis.call('zcard', KEYS[6]), redis.call('hlen', KEYS[7])
  local front = redis.call('lindex', KEYS[5], 0)
  local was = redis.call('hmget', KEYS[8], 'front', 'shared')
  if waiting == 0 or not front then
    redis.call('del', KEYS[5], KEYS[6], KEYS[7], KEYS[8])
    return
  end
  local gone = was[1] and was[1] ~= front and redis.call('hexists', KEYS[7], was[1]) == 1
    and not redis.call('zscore', KEYS[6], was[1])
  if gone or ours > waiting then
    ours = prune() -- Redisson removed the front, a waiter of ours, and perhaps others behind it
  end
  local shared = ours ~= waiting
  if shared or was[2] then -- a queue that was mixed until now has high scores to bring down
    stamp_all(at, fresh or redis.call('exists', KEYS[1]) == 1)
  else
    stamp_ends(at)
  end
  freed = 0
  if ours == 0 then
    redis.call('del', KEYS[7], KEYS[8])
    return
  end
  if was[1] ~= front then
    redis.call('hset', KEYS[8], 'front', front)
  end
  if shared and not was[2] then
    redis.call('hset', KEYS[8], 'shared', '1')
  elseif was[2] and not shared then
    redis.call('hdel', KEYS[8], 'shared')
  end
end

-- head is the next owner, how long it has to take the lock, ms, and its client if it is one of ours.
-- It removes dead waiters before that one.
local function head(at)
  local removed = false
  while true do
    local id = redis.call('lindex', KEYS[5], 0)
    local left, client
    if id then
      left, client = remaining(id, at)
    end
    -- A waiter of Redisson that only now becomes the head has not had its time yet.
    if not id or left > 0 or (removed and not client) then
      if removed then
        restamp(at, true)
      end
      return id, left, client
    end
    remove(id)
    removed = true
  end
end

-- note_holder records that a waiter of ours took the lock, so that later waiters need not subscribe
-- to what Redisson publishes. While others wait, the field "id ..." of its client shows that too,
-- unless a caller chose the owner id.
local function note_holder(id, ttl)
  if redis.call('exists', KEYS[5]) == 0 then
    redis.call('del', KEYS[8])
    redis.call('hset', KEYS[8], 'holder', id)
    redis.call('pexpire', KEYS[8], ttl)
  elseif redis.call('exists', KEYS[8]) == 1 then
    redis.call('hset', KEYS[8], 'holder', id)
  end
end
