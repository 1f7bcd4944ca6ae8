-- permitsemaphore/acquire: acquire permits, all or none, for ids of one acquisition alone.
-- uses     lib/acl, lib/clock, lib/number, lib/polls, lib/primary, permitsemaphore/leases
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel: on which the release will be published
-- KEYS[3]  memory_key: of this acquisition's release
-- KEYS[4]  leases
-- KEYS[5]  mark (optional): of clients that poll, if this one does
-- ARGV[1]  publish (command)
-- ARGV[2]  max_collected (number): how many expired leases to collect at most
-- ARGV[3]  ids (text): of 16 bytes each
-- ARGV[4]  ttl_ms (ms)
-- ARGV[5]  mark_ttl_ms (ms, optional)
-- returns  permits:
--          {1, free permits} when acquired;
--          {0, free permits, ms until a lease ends} when there are too few: -1 when none will
--            ever end, -2 when nobody has one, 0 when more are to be collected;
--          {0} when no number is set;
--          "over" when this acquisition was released already
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, max_collected, ids, ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local mark, mark_ttl_ms = KEYS[5], ARGV[5]

if redis.call('exists', memory_key) == 1 then
  return 'over'
end
local now, free, wanted = now_ms(), read_number(permits_key), #ids / 16
local ends_at = now + 1 + ttl_ms -- now is rounded down; a lease must not be shorter than its ttl
local own = acquired_permits(leases, ids, now)
if not free or #own > 0 then
  require_primary(channel)
end
if not free then
  return {0}
end
if #own == wanted then -- a copy of this request. The leases may have been extended since
  extend_leases(leases, ids, ends_at)
  return {1, free}
end
if #own > 0 then
  -- An earlier copy acquired, but its leases have expired and some were collected. Start again.
  remove_leases(leases, own)
  free = redis.call('incrby', permits_key, #own)
end

local function first_end()
  return tonumber(redis.call('zrange', leases, 0, 0, 'withscores')[2])
end

local expired, next_end = 0, first_end()
if next_end and next_end <= now then
  expired = math.min(redis.call('zcount', leases, '-inf', now), max_collected)
end
local enough = free + expired >= wanted
if not enough then
  require_primary(channel)
end
if enough or expired > 0 then
  local denied = publish_denied(publish, channel)
  if denied then
    return denied
  end
end
if enough then
  -- The first write: if a full Redis refuses it, nothing has changed.
  set_leases(leases, ids, ends_at)
end
if expired > 0 then
  local collected = redis.call('zrangebyscore', leases, '-inf', now, 'limit', 0, expired)
  redis.call('zrem', leases, unpack(collected))
  free = redis.call('incrby', permits_key, expired)
  if free > 0 then
    redis.call(publish, channel, free)
  end
end
if enough then
  free = redis.pcall('decrby', permits_key, wanted)
  if type(free) == 'table' then -- the user may lack the permission for it
    remove_leases(leases, (acquired_permits(leases, ids, now)))
    return free
  end
  -- The set of leases lasts as long as the key of free permits.
  local pool_ttl = redis.call('pttl', permits_key)
  if pool_ttl > 0 then
    redis.call('pexpire', leases, pool_ttl)
  else
    redis.call('persist', leases)
  end
  return {1, free}
end
if mark then
  mark_poll(mark, mark_ttl_ms)
end
if expired > 0 then
  next_end = first_end()
end
if not next_end then
  return {0, free, -2}
end
if next_end == never_ends then
  return {0, free, -1}
end
return {0, free, math.max(next_end - now, 0)}
