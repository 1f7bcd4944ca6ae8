-- fairlock/acquire: take the lock if it is free and no waiter goes first, or join the queue.
-- uses     channel, queue
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a client's or a waiter's own channel is this one, a colon and its id
-- KEYS[3]  memory of this acquisition: a private one's release; a shared one's 1 entered, 2 left,
--          3 never to enter
-- KEYS[4]  shared counts: hash of owner ids, each with how many of its counts belong to WithOwner
--          callers
-- KEYS[5]  queue
-- KEYS[6]  deadlines
-- KEYS[7]  our waiters
-- KEYS[8]  heartbeats
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms, when others may share the id; 0 when it belongs to this acquisition alone
-- ARGV[5]  1 to refuse a second count
-- ARGV[6]  1 to join the queue when refused; 2 to be granted the lock there, too
-- ARGV[7]  timeout of this waiter, ms
-- ARGV[8]  its client: an id of this life of it
-- ARGV[9]  its client id, with which its owner ids begin
-- ARGV[10] 1 when nested under a hold with the same id
-- returns  0 when ours; "over" when this acquisition has ended; "again" when refused a count; "lost"
--          when nested and the outer hold is gone; when refused {holder's pttl, holder}, and, in the
--          queue, the time at which it joined, and 1 if Redisson holds the lock, or may before it
local id, shared = ARGV[1], ARGV[4] ~= '0'
local memory = redis.call('get', KEYS[3])
if memory and not (shared and memory == '1') then
  return 'over'
end
local holder = redis.call('hkeys', KEYS[1])[1]
local held = holder == id
if ARGV[10] == '1' and not held then
  return 'lost'
end

-- prolong makes the lock last for the whole ttl, and never shortens it.
local function prolong()
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
end

-- counted tells whether the lock has a count of this acquisition already.
local function counted()
  if shared then
    return memory
  end
  local others = tonumber(redis.call('hget', KEYS[4], id) or 0)
  return others == 0 or tonumber(redis.call('hget', KEYS[1], id)) > others
end

if held and counted() then -- a copy of this script, or the lock was granted in the queue
  prolong()
  return 0
end
if held and ARGV[5] == '1' then
  return 'again'
end

-- enter takes the lock, or one more count of it. The count of another type's key fails first.
local function enter()
  if shared then
    if held then
      redis.call('hincrby', KEYS[4], id, 1)
    else
      redis.call('hset', KEYS[4], id, 1)
    end
    redis.call('pexpire', KEYS[4], math.max(86400000, ARGV[2]))
  end
  redis.call('hincrby', KEYS[1], id, 1)
  if held then
    prolong()
  else
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  if shared then
    redis.call('set', KEYS[3], '1', 'px', ARGV[4])
  end
  return 0
end

local contended = holder or redis.call('exists', KEYS[5], KEYS[6], KEYS[7], KEYS[8]) > 0
local owner = string.match(holder or '', '^(.*):') or ''
local known = contended and redis.call('hmget', KEYS[8], ARGV[8], 'shared', 'holder', 'id ' .. owner) or {}
local at = contended and now()
-- A recent heartbeat need not be renewed, and its client has been found to be allowed to publish.
local lively = known[1] and at - known[1] < math.min(heartbeat_age, ARGV[7] / 4)
local denied = not lively and may_publish(ARGV[3], KEYS[2] .. ':' .. id)
if denied then
  return denied
end

local function heartbeat()
  redis.call('hset', KEYS[8], ARGV[8], at, 'id ' .. ARGV[9], '1')
  -- Redisson does not know of these two keys. If all clients of ours crash, they expire.
  local keep = math.max(60000, 2 * ARGV[7])
  for i = 7, 8 do
    if redis.call('pttl', KEYS[i]) < keep then
      redis.call('pexpire', KEYS[i], 2 * keep)
    end
  end
end

-- enqueue puts the waiter into the queue, if it is not there yet. It returns the time at which the
-- waiter joined, and 1 if Redisson holds the lock or may before it.
local function enqueue()
  -- Read each key before the first write: one of another type must fail while nothing has changed.
  local ours = redis.call('hlen', KEYS[7])
  local highest = redis.call('zrange', KEYS[6], -1, -1, 'withscores')[2]
  local score = math.max(deadline(at, tonumber(ARGV[7])), tonumber(highest or 0))
  local length, since
  if redis.call('zadd', KEYS[6], 'nx', score, id) == 1 then
    length = redis.pcall('rpush', KEYS[5], id)
    if type(length) == 'table' then
      redis.call('zrem', KEYS[6], id)
      return nil, nil, length
    end
  else
    length = redis.call('llen', KEYS[5])
    since = select(4, waiter(id))
  end
  if not since then
    since = ARGV[6] == '2' and string.format('%d', at) or ''
    local entry = ARGV[8] .. ' ' .. ARGV[7]
    redis.call('hset', KEYS[7], id, since == '' and entry or entry .. ' ' .. ARGV[2] .. ' ' .. since)
    ours = ours + 1
  end
  if not lively then
    heartbeat()
  end
  local mixed = known[2] or ours ~= length
  if mixed then
    restamp(at, false)
  end
  local native = not holder or holder == known[3] or known[4] or owner == ARGV[9]
  -- A place that shares a private waiter's id is granted to that waiter alone.
  return ARGV[6] == '2' and since or '', (mixed or not native) and 1 or 0
end

if not contended then
  return enter()
end
if not holder or held then
  local first = head(at)
  if first and (held or first == id) then
    remove(id)
    enter()
    restamp(at, true)
    note_holder(id, ARGV[2])
    return 0
  end
  if not first then
    if not held then
      clear()
    end
    return enter()
  end
end
if ARGV[6] == '0' then
  return {redis.call('pttl', KEYS[1]), holder}
end
local since, foreign, fault = enqueue()
if fault then
  return fault
end
return {redis.call('pttl', KEYS[1]), holder or '', since, foreign}
