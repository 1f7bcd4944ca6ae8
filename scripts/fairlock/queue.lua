-- fairlock/queue: the wait queue of Redisson's fair lock, and which of its waiters are dead.
--
-- Redisson gives each waiter a score, the time at which it counts as dead: the score of the waiter
-- before it plus its own timeout. A waiter that takes the lock subtracts its timeout from all other
-- scores. Every script of Redisson first removes a head whose score has passed. A queue without
-- Redisson's waiters needs none of that: a client sends one heartbeat for all its waiters, and a
-- waiter is dead when that heartbeat is older than its timeout. Scores then matter only where
-- Redisson reads them: at the head, which it may remove, and at the tail, to which it adds.
--
-- A redlatch waiter is one of this library's, with an entry in the hash "waiters". A mixed queue
-- has waiters of Redisson too, so it has more members than that hash. All its scores are rewritten,
-- at a cost for each member. After every script of this library:
--
--   - The head's score is ahead of the clock by at least half of its timeout. Redisson removes the
--     head only if no redlatch client has looked at the queue for that long.
--   - No score exceeds the tail's. If the tail's score has passed, all scores have, and Redisson
--     finds the queue empty, so a newcomer of Redisson never computes a negative wait from the
--     tail's score, which would mean "forever" to it.
--   - In a mixed queue, a redlatch waiter has its whole timeout left after all of Redisson's
--     waiters before it took the lock and subtracted their timeouts.
--
-- Two steps in a queue without Redisson's waiters preserve the first two rules by themselves: a
-- newcomer at the tail (in fairlock/acquire) and a grant to the head (hand_off in
-- fairlock/hand_off). After any other change, and when Redisson's waiters are found, call
-- update_scores. The next newcomer of this library, or the next refresh, at most a second later,
-- finds a newcomer of Redisson. That one is at the tail, and its own timeout is enough until then.
--
-- A key of another type raises an error and is left alone, so every function here reads a key with
-- a command of its type before it deletes it or sets its TTL.
--
-- uses     lib/clock
-- defines  fair_lock(keys), parse_waiter(entry), joined_at(since), delete_empty_queue(lock),
--          queue_rules(), shortest_timeout, heartbeat_interval

-- fair_lock names the keys of a fair lock. Every script that takes or frees a fair lock has the
-- same KEYS. The result is the argument "lock" of all functions here.
local function fair_lock(keys)
  return {
    -- hash of the lock: owner id and count
    hash = keys[1],
    -- channel of the lock; the channel of a client or a waiter is this one, a colon and its id
    channel = keys[2],
    -- memory of the request: see each script
    memory = keys[3],
    -- hash of owner ids, each with its acquisitions with WithOwner: see lib/shared_counts
    shared_counts = keys[4],
    -- list of waiters' ids, the next owner first
    queue = keys[5],
    -- sorted set of the same ids: the scores
    deadlines = keys[6],
    -- hash of the ids of redlatch waiters, each with its client and its timeout, ms; if it can be
    -- granted the lock, also with the TTL that it asks for, ms, and "since": the time at which it
    -- joined the queue and 16 random digits, which tell one stay in the queue from another
    waiters = keys[7],
    -- hash of clients, each with the server time of its last heartbeat. More fields: "id ..." for
    -- the client id of each (its owner ids begin with that), with the client; "front" and "shared"
    -- (the head, and whether the queue was mixed, at the last update_scores), "holder" (the id of a
    -- redlatch waiter that acquired the lock), "reach" (in a queue without Redisson's waiters, no
    -- score is later than the time plus this, ms; missing: unknown), "timeout" (no redlatch waiter
    -- has a longer one, ms), "swept" (the time and the cursor of the last forget_clients), and
    -- "twins ..." for the id of a redlatch waiter, with other clients that wait with the same id
    -- (WithOwner), and their timeouts: they keep its place when its client leaves
    clients = keys[8],
    -- score of a redlatch waiter that was removed from the head since the last update_scores
    removed_score = false,
  }
end

-- parse_waiter reads an entry of the hash of waiters: the timeout and the client; if the waiter can
-- be granted the lock, also the TTL and since.
local function parse_waiter(entry)
  if entry then
    local client, timeout, ttl_ms, since = string.match(entry, '^(%S+) (%d+) ?(%d*) ?(%d*)$')
    if not ttl_ms or #ttl_ms > 15 then -- beyond any TTL: no entry of this library
      return
    end
    return tonumber(timeout), client, tonumber(ttl_ms), since
  end
end

-- joined_at returns the server's time at which a waiter joined. since ends with 16 random digits.
local function joined_at(since)
  since = since or ''
  return tonumber(#since > 16 and string.sub(since, 1, -17) or since) or 0
end

local shortest_timeout = 3000 -- the least in a redlatch score: heartbeats come once a second
local heartbeat_interval = 500 -- an attempt renews a heartbeat that is older
local sweep_interval = 1000 -- forget_clients does its part once in this time

-- delete_empty_queue deletes the keys that an empty queue has left behind.
local function delete_empty_queue(lock)
  if redis.call('exists', lock.deadlines, lock.waiters, lock.clients) == 0 then
    return
  end
  redis.call('zcard', lock.deadlines)
  redis.call('hlen', lock.waiters)
  redis.call('hlen', lock.clients)
  redis.call('del', lock.deadlines, lock.waiters, lock.clients)
end

-- queue_rules returns the functions that keep the rules at the top of this file. In the common case
-- a script needs none of them, and to make them would take a good part of its time.
local function queue_rules()
  local redisson_timeout = 300000 -- Redisson's default, used where the scores show no longer one
  local default_timeout = 10000 -- of redlatch waiters: an earlier version does not write "timeout"
  local redisson_grace = 5000 -- a waiter of Redisson that becomes the head has this long to acquire

  -- read_waiter returns what parse_waiter reads of an id; nil for a waiter of Redisson.
  local function read_waiter(lock, id)
    return parse_waiter(redis.call('hget', lock.waiters, id))
  end

  -- waiter_ttl returns how long until id counts as dead, ms, 0 or less when it does; and its
  -- client, nil for a waiter of Redisson.
  local function waiter_ttl(lock, id, now)
    local timeout, client = read_waiter(lock, id)
    if timeout then
      return (tonumber(redis.call('hget', lock.clients, client)) or 0) + timeout - now, client
    end
    return tonumber(redis.call('zscore', lock.deadlines, id) or 0) - now
  end

  -- is_mixed reports whether the queue has waiters of Redisson, or others that count as such.
  local function is_mixed(lock)
    return redis.call('zcard', lock.deadlines) ~= redis.call('hlen', lock.waiters)
  end

  -- scores_behind returns the waiters behind a redlatch waiter that leaves the middle of a mixed
  -- queue, each with its score without the time that the leaving one has added. Otherwise score_all
  -- would leave that time to a Redisson waiter.
  local function scores_behind(lock, id)
    local behind, before, gap = {}, nil, 0
    if is_mixed(lock) and read_waiter(lock, id) then
      for _, other in ipairs(redis.call('lrange', lock.queue, 0, -1)) do
        local score = tonumber(redis.call('zscore', lock.deadlines, other) or '')
        if other == id then
          gap = before and score and score - before or 0
        elseif gap > 0 and score then
          behind[#behind + 1] = {id = other, score = score - gap}
        end
        before = score
      end
    end
    return behind
  end

  -- note_twin notes a client that waits with the same id as the waiter of another client.
  local function note_twin(lock, id, client, timeout_ms)
    local twins = redis.call('hget', lock.clients, 'twins ' .. id) or ''
    if not string.find(twins, client .. ' ', 1, true) then
      redis.call('hset', lock.clients, 'twins ' .. id, twins .. client .. ' ' .. timeout_ms .. ' ')
    end
  end

  -- leave_to_twin ends the wait of a client for a place. It returns true if the place stays: it
  -- belongs to another client that waits with the same id, or to one that is alive from now on.
  -- Only a private waiter is granted the lock in the queue: a twin tries when it gets a message.
  local function leave_to_twin(lock, id, client, now)
    local _, owner = read_waiter(lock, id)
    local twins = owner and redis.call('hget', lock.clients, 'twins ' .. id)
    if not twins then
      return false
    end
    redis.call('hdel', lock.clients, 'twins ' .. id) -- a full Redis allows what follows
    local heir, rest = nil, ''
    for twin, timeout in string.gmatch(twins, '(%S+) (%d+) ') do
      local heartbeat = tonumber(redis.call('hget', lock.clients, twin)) or 0
      if twin ~= client and heartbeat + timeout > now then
        if owner == client and not heir then
          heir = twin .. ' ' .. timeout
        else
          rest = rest .. twin .. ' ' .. timeout .. ' '
        end
      end
    end
    if rest ~= '' then
      redis.call('hset', lock.clients, 'twins ' .. id, rest)
    end
    if heir then
      redis.call('hset', lock.waiters, id, heir)
    end
    return heir ~= nil or owner ~= client
  end

  -- remove_waiter removes a waiter from the queue, wherever it is. It changes the set first: if
  -- that key has another type, nothing was removed yet. A full Redis allows that write, and then
  -- the others.
  local function remove_waiter(lock, id)
    if redis.call('lindex', lock.queue, 0) == id then
      local score = redis.call('zscore', lock.deadlines, id)
      lock.removed_score = read_waiter(lock, id) and tonumber(score or '')
      redis.call('zrem', lock.deadlines, id)
      redis.call('lpop', lock.queue)
    else
      local behind = scores_behind(lock, id)
      if redis.call('zrem', lock.deadlines, id) == 1 then
        redis.call('lrem', lock.queue, 0, id)
      end
      for _, waiter in ipairs(behind) do
        redis.call('zadd', lock.deadlines, string.format('%.0f', waiter.score), waiter.id)
      end
    end
    redis.call('hdel', lock.waiters, id)
    redis.call('hdel', lock.clients, 'twins ' .. id)
  end

  -- score_after returns the score of a redlatch waiter whose timeout starts at from.
  local function score_after(from, timeout)
    return from + math.max(timeout, shortest_timeout)
  end

  -- score_ends writes the scores of the head and the tail, in a queue without Redisson's waiters.
  -- Its result is the highest score.
  local function score_ends(lock, now)
    local first, last = redis.call('lindex', lock.queue, 0), redis.call('lindex', lock.queue, -1)
    local score = score_after(now, read_waiter(lock, first) or 0)
    redis.call('zadd', lock.deadlines, score, first)
    if last ~= first then
      local highest = tonumber(redis.call('zrange', lock.deadlines, -1, -1, 'withscores')[2])
      score = math.max(highest, score_after(now, read_waiter(lock, last) or 0))
      redis.call('zadd', lock.deadlines, score, last)
    end
    return score
  end

  -- score_new_head keeps Redisson from removing the new head of a queue without Redisson's waiters
  -- too early: it may have used up half of its score's time already. No client may have looked at
  -- the queue for long; then the tail's score is old, too.
  local function score_new_head(lock, now, id, entry)
    local timeout, _, _, since = parse_waiter(entry)
    local whole = score_after(0, timeout or 0)
    if now - joined_at(since) > whole / 2 then
      local highest = tonumber(redis.call('zrange', lock.deadlines, '-1', '-1', 'withscores')[2])
      if highest < now + whole / 2 then
        score_ends(lock, now)
      else
        redis.call('zadd', lock.deadlines, math.min(now + whole, highest), id)
      end
    end
  end

  -- score_all writes all scores of a mixed queue. A redlatch waiter gets its timeout beyond those
  -- of Redisson's waiters before it. One that counts as dead gets nothing: Redisson then removes it
  -- soon after those have left, even if no redlatch client looks at the queue any more. A waiter of
  -- Redisson keeps its distance to the one before it. That must not grow: one that gives up takes
  -- only its own timeout from the scores behind it, and the rest would stay there.
  -- fresh: the head has its whole time to acquire the lock left. last_look: no redlatch waiter is
  -- left to look again, so each waiter gets the time for those before it, too.
  local function score_all(lock, now, fresh, last_look)
    local base = now -- the time, plus the timeouts of Redisson's waiters so far
    local least = now + redisson_grace -- of a waiter of Redisson
    local heard = {} -- the last heartbeats, by client
    -- the score before, and by how much that was moved
    local last, shift = now, now - (lock.removed_score or now)
    for i, id in ipairs(redis.call('lrange', lock.queue, 0, -1)) do
      local score = tonumber(redis.call('zscore', lock.deadlines, id))
      local timeout, client = read_waiter(lock, id)
      local new = (score or last + redisson_timeout) + shift
      if timeout then
        heard[client] = heard[client] or tonumber(redis.call('hget', lock.clients, client)) or 0
        local alive = heard[client] + timeout > now
        new = alive and math.max(last, score_after(base, timeout)) or last
      elseif i > 1 then
        least = least + (last_look and redisson_grace or 0)
        new = math.max(new, last, least)
        base = base + math.max(redisson_timeout, new - last)
      else
        new = math.min(new, now + redisson_timeout)
        if fresh then
          new = math.max(new, now + redisson_grace)
        end
        base = base + redisson_timeout
      end
      if new ~= score then
        redis.call('zadd', lock.deadlines, new, id)
      end
      last, shift = new, new - (score or new)
    end
  end

  -- prune_waiters deletes the entries of those redlatch waiters that Redisson removed, and returns
  -- how many entries stay.
  local function prune_waiters(lock)
    local entries = redis.call('hgetall', lock.waiters)
    for i = 1, #entries, 2 do
      local id = entries[i]
      if not redis.call('zscore', lock.deadlines, id) then
        redis.call('hdel', lock.waiters, id)
      end
    end
    return redis.call('hlen', lock.waiters)
  end

  -- update_scores restores the rules at the top of this file, whatever has changed. fresh: a waiter
  -- of Redisson just became the head, or was just told that the lock is free.
  local function update_scores(lock, now, fresh)
    local length, known = redis.call('zcard', lock.deadlines), redis.call('hlen', lock.waiters)
    local front = redis.call('lindex', lock.queue, 0)
    local before = redis.call('hmget', lock.clients, 'front', 'shared', 'reach')
    local old_front, was_mixed, reach = before[1], before[2], before[3]
    if length == 0 or not front then
      redis.call('del', lock.queue, lock.deadlines, lock.waiters, lock.clients)
      return
    end
    local front_removed = old_front and old_front ~= front
      and redis.call('hexists', lock.waiters, old_front) == 1
      and not redis.call('zscore', lock.deadlines, old_front)
    if front_removed or known > length then
      -- Redisson removed the front, a redlatch waiter, and perhaps others behind it.
      known = prune_waiters(lock)
    end
    local mixed = known ~= length
    if mixed or was_mixed then -- a queue that was mixed until now has high scores to bring down
      score_all(lock, now, fresh or redis.call('exists', lock.hash) == 1, known == 0)
    else
      local needed = score_ends(lock, now) - now
      if reach and needed > (tonumber(reach) or 0) then -- a client that does not know of "reach"
        redis.call('hset', lock.clients, 'reach', needed)
      end
    end
    lock.removed_score = false
    if known == 0 then
      redis.call('del', lock.waiters, lock.clients)
      return
    end
    if old_front ~= front then
      redis.call('hset', lock.clients, 'front', front)
    end
    if mixed and not was_mixed then
      redis.call('hset', lock.clients, 'shared', '1')
    elseif was_mixed and not mixed then
      redis.call('hdel', lock.clients, 'shared', 'reach')
    end
  end

  -- live_head returns the next owner, how long it has to acquire the lock, ms, and its client if it
  -- is a redlatch waiter. It removes dead waiters before that one.
  local function live_head(lock, now)
    local removed = false
    while true do
      local id = redis.call('lindex', lock.queue, 0)
      local left, client
      if id then
        left, client = waiter_ttl(lock, id, now)
      end
      -- A waiter of Redisson that only now becomes the head has not had its time yet.
      if not id or left > 0 or (removed and not client) then
        if removed then
          update_scores(lock, now, true)
        end
        return id, left, client
      end
      local _, dead_client = read_waiter(lock, id)
      if not (dead_client and leave_to_twin(lock, id, dead_client, now)) then
        remove_waiter(lock, id)
        removed = true
      end
    end
  end

  -- note_holder records that a redlatch waiter acquired the lock, so that later waiters need not
  -- subscribe to what Redisson publishes. While others wait, the field "id ..." of its client shows
  -- that too, unless a caller chose the owner id.
  local function note_holder(lock, id, ttl_ms)
    if redis.call('exists', lock.queue) == 0 then
      redis.call('del', lock.clients)
      redis.call('hset', lock.clients, 'holder', id)
      redis.call('pexpire', lock.clients, ttl_ms)
    elseif redis.call('exists', lock.clients) == 1 then
      redis.call('hset', lock.clients, 'holder', id)
    end
  end

  -- forget_clients removes the fields of clients whose heartbeat is older than any timeout: all
  -- their waiters have left, or count as dead. Without it, these fields would stay until the queue
  -- is empty. It looks at a part of the hash, at most once a second. The client id of the holder
  -- (nil: nobody holds the lock) stays: it shows that Redisson does not hold the lock. A heartbeat
  -- in the future counts as one of now: the clock was set back, and the client may have crashed
  -- since.
  local function forget_clients(lock, now, holder)
    local swept, longest = unpack(redis.call('hmget', lock.clients, 'swept', 'timeout'))
    local at, cursor = string.match(swept or '', '^(%d+) (%d+)$')
    if at and math.abs(now - at) < sweep_interval then
      return
    end
    local page = redis.call('hscan', lock.clients, cursor or '0', 'count', '100')
    redis.call('hset', lock.clients, 'swept', string.format('%.0f ', now) .. page[1])
    local oldest = now - math.max(tonumber(longest) or 0, default_timeout)
    local no_client = {
      front = true, shared = true, holder = true, reach = true, timeout = true, swept = true,
    }
    for i = 1, #page[2], 2 do
      local field, heartbeat = page[2][i], page[2][i + 1]
      local id = string.match(field, '^id (.*)$')
      if id then -- an earlier version has "1" instead of the client
        heartbeat = heartbeat ~= '1' and string.sub(holder or '', 1, #id + 1) ~= id .. ':'
          and (redis.call('hget', lock.clients, heartbeat) or 0)
      end
      local twins_of = string.match(field, '^twins (.*)$')
      if twins_of then
        if not redis.call('zscore', lock.deadlines, twins_of) then
          redis.call('hdel', lock.clients, field)
        end
      elseif heartbeat and not no_client[field] then
        heartbeat = tonumber(heartbeat) or 0
        if heartbeat < oldest then
          redis.call('hdel', lock.clients, field)
        elseif heartbeat > now and not id then
          redis.call('hset', lock.clients, field, now)
        end
      end
    end
  end

  return {
    read_waiter = read_waiter, remove_waiter = remove_waiter, score_new_head = score_new_head,
    update_scores = update_scores, live_head = live_head, note_holder = note_holder,
    forget_clients = forget_clients, is_mixed = is_mixed,
    note_twin = note_twin, leave_to_twin = leave_to_twin,
  }
end
