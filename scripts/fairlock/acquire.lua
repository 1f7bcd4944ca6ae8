-- fairlock/acquire: take the lock if it is free and nobody stands before, or stand in the queue.
-- uses     channel, queue
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a waiter's own is this one, a colon and its id
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
-- ARGV[6]  1 to stand in the queue when refused
-- ARGV[7]  how long this waiter may be silent, ms
-- ARGV[8]  its client
-- returns  nil when ours; {holder's pttl, holder} when refused; "over" when this acquisition has ended; "again" when refused a count
local id, shared = ARGV[1], ARGV[4] ~= '0'
local memory = redis.call('get', KEYS[3])
if memory and not (shared and memory == '1') then
  return 'over'
end
local held = redis.call('hexists', KEYS[1], id) == 1
if held and (memory or not shared) then -- this is a repetition
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  return nil
end
if held and ARGV[5] == '1' then
  return 'again'
end
local denied = may_publish(ARGV[3], KEYS[2] .. ':' .. id)
if denied then
  return denied
end
local at = now()
local first = head(at)
if held or (redis.call('exists', KEYS[1]) == 0 and (not first or first == id)) then
  redis.call('hincrby', KEYS[1], id, 1)
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  if shared then
    redis.call('set', KEYS[3], '1', 'px', ARGV[4])
  end
  if first then
    drop(id)
    mark(at, true)
  end
  return nil
end
if ARGV[6] == '1' then
  if not redis.call('zscore', KEYS[5], id) then
    redis.call('rpush', KEYS[4], id)
    redis.call('zadd', KEYS[5], at + ARGV[7], id)
  end
  redis.call('hset', KEYS[6], id, ARGV[8] .. ' ' .. ARGV[7])
  redis.call('hset', KEYS[7], ARGV[8], at)
  -- Beside the queue these two do not show; should all of us crash, they go.
  local keep = math.max(60000, 2 * ARGV[7])
  for i = 6, 7 do
    if redis.call('pttl', KEYS[i]) < keep then
      redis.call('pexpire', KEYS[i], 2 * keep)
    end
  end
  mark(at, false)
end
return {redis.call('pttl', KEYS[1]), redis.call('hkeys', KEYS[1])[1]}
