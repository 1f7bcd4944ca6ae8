-- fairlock/acquire: take the lock if it is free and nobody stands before, or stand in the queue.
-- uses     channel, queue
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a client's own, or that of one of Redisson's that waits, is this one, a colon and the id
-- KEYS[3]  memory of this acquisition: of an id of its own, that it was released; of a shared one, 1 entered, 2 left, 3 never to enter
-- KEYS[4]  queue
-- KEYS[5]  deadlines
-- KEYS[6]  ours
-- KEYS[7]  signs of life
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms, when others may share the id; 0 when it belongs to this acquisition alone
-- ARGV[5]  1 to refuse a second count
-- ARGV[6]  1 to stand in the queue when refused; 2 to be given the lock there, too
-- ARGV[7]  how long this waiter may be silent, ms
-- ARGV[8]  its client
-- returns  0 when ours; "over" when this acquisition has ended; "again" when refused a count; when refused {holder's pttl, holder}, and, standing in the
--          queue, since when, and 1 if one of Redisson's holds the lock, or may before this one
local id, shared = ARGV[1], ARGV[4] ~= '0'
local memory = redis.call('get', KEYS[3])
if memory and not (shared and memory == '1') then
  return 'over'
end
local holder = redis.call('hkeys', KEYS[1])[1]
local held = holder == id

-- prolong sees that the lock is held for the whole ttl.
local function prolong()
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
end

if held and (memory or not shared) then -- this is a repetition, or it was given the lock
  prolong()
  return 0
end
if held and ARGV[5] == '1' then
  return 'again'
end
-- enter takes the lock, or one more count of it.
local function enter()
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

local standing = holder or redis.call('exists', KEYS[4]) == 1
local known = standing and redis.call('hmget', KEYS[7], ARGV[8], 'shared', 'holder') or {}
local at = standing and now()
-- A sign of life that was just now need not be renewed; and who gave it may publish.
local lively = known[1] and at - known[1] < math.min(worn, ARGV[7] / 4)
local denied = not lively and may_publish(ARGV[3], KEYS[2] .. ':' .. id)
if denied then
  return denied
end

-- live is a sign of life.
local function live()
  redis.call('hset', KEYS[7], ARGV[8], at)
  -- Beside the queue these two do not show; should all of us crash, they go.
  local keep = math.max(60000, 2 * ARGV[7])
  for i = 6, 7 do
    if redis.call('pttl', KEYS[i]) < keep then
      redis.call('pexpire', KEYS[i], 2 * keep)
    end
  end
end

-- stand is to stand in the queue: since when, and whether one of Redisson's is before.
local function stand()
  local score = deadline(at, tonumber(ARGV[7]))
  local highest = redis.call('zrange', KEYS[5], -1, -1, 'withscores')[2]
  score = math.max(score, tonumber(highest or 0))
  local length, since
  if redis.call('zadd', KEYS[5], 'nx', score, id) == 1 then
    length = redis.call('rpush', KEYS[4], id)
  else
    length = redis.call('llen', KEYS[4])
    since = select(4, patience(id))
  end
  if not since then
    since = ARGV[6] == '2' and string.format('%d', at) or ''
    local mine = ARGV[8] .. ' ' .. ARGV[7]
    redis.call('hset', KEYS[6], id, since == '' and mine or mine .. ' ' .. ARGV[2] .. ' ' .. since)
  end
  if not lively then
    live()
  end
  local mixed = known[2] or redis.call('hlen', KEYS[6]) ~= length
  if mixed then
    mark(at, false)
  end
  local native = not holder or holder == known[3] or string.sub(holder, 1, #ARGV[8]) == ARGV[8]
  return since, (mixed or not native) and 1 or 0
end

if not standing then
  return enter()
end
if not holder or held then
  local first = head(at)
  if held or not first or first == id then
    local entered = enter()
    if first then
      drop(id)
      mark(at, true)
      taken(id, ARGV[2])
    end
    return entered
  end
end
if ARGV[6] == '0' then
  return {redis.call('pttl', KEYS[1]), holder}
end
local since, foreign = stand()
return {redis.call('pttl', KEYS[1]), holder or '', since, foreign}
