-- permitsemaphore/release: release permits, or hand them off.
-- The successor waits for as many permits or fewer, and gets them at once, unless the semaphore has
-- been made smaller meanwhile. A late copy of the acquisition acquires nothing.
--
-- Ids that hold nothing will never hold again, unless a copy of their acquisition is still under
-- way. Therefore without a memory a copy of this script changes nothing either, and its answer is
-- that they were not held.
-- uses     lib/acl, lib/clock, lib/number, lib/primary, lib/publish_permits, lib/remember
-- uses     permitsemaphore/leases
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  leases
-- KEYS[5]  successor_memory (optional): memory of the successor's release, if there is a successor;
--          without one, the mark of clients that poll, if the client asks for it
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms): 0 when no copy of the acquisition can come; KEYS[3] is not set then
-- ARGV[3]  ids (text): of 16 bytes each
-- ARGV[4]  all_or_none (flag): release all of them or none; without it, release those that are
--          still taken
-- ARGV[5]  successor_ids (text, optional): missing: no successor
-- ARGV[6]  successor_ttl_ms (ms, optional)
-- returns  released: 0 when not all were held, -1 when the semaphore is gone; {free permits} when
--          the successor has its permits now; else 1 and how many received the release message, as
--          {that number, "polled"} if clients poll
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local successor_memory = KEYS[5]
local publish, memory_ttl_ms, ids, all_or_none = ARGV[1], ARGV[2], ARGV[3], ARGV[4] ~= '0'
local successor_ids, successor_ttl_ms = ARGV[5], ARGV[6]

local now = now_ms()
local free = read_number(permits_key)
local memory = memory_ttl_ms ~= '0' and redis.call('get', memory_key)
local own, live = acquired_permits(leases, ids, now)
if memory and memory ~= 'rests' then -- see permitsemaphore/shorten
  if successor_ids and memory == '1'
    and #acquired_permits(leases, successor_ids, now) == #successor_ids / 16 then
    -- A copy of this request. The successor counts its leases from when the answered copy was sent.
    extend_leases(leases, successor_ids, now + 1 + successor_ttl_ms)
    return {free or 0}
  end
  return tonumber(memory)
end
local held = free and live == #ids / 16
if #own == 0 then
  require_primary(channel)
end
local denied = all_or_none and publish_denied(publish, channel)
if denied then
  return denied
end
-- A successor that has its permits already, or has given up, must not get them. Nor may it get
-- what is missing: fewer than 0 are free after permits were removed.
local hands_off = held and successor_ids and free + #own >= #successor_ids / 16
  and redis.call('exists', successor_memory) == 0
  and #acquired_permits(leases, successor_ids, now) == 0
if memory_ttl_ms ~= '0' or hands_off then
  redis.call('del', memory_key) -- a full Redis allows this, and then the writes after it
end
local receivers = 0
if held or not all_or_none then
  local returned = #own
  if hands_off then
    -- Before the others are removed: a set that loses its last member is deleted, with its TTL.
    set_leases(leases, successor_ids, now + 1 + successor_ttl_ms)
    returned = returned - #successor_ids / 16
  end
  remove_leases(leases, own)
  if free and returned > 0 then
    free = redis.call('incrby', permits_key, returned)
    receivers = publish_permits(publish, channel, free)
  end
end
local lost = free and 0 or -1
if memory_ttl_ms ~= '0' then
  remember(memory_key, held and 1 or lost, memory_ttl_ms)
end
if hands_off then
  return {free}
end
local is_polled = held and not successor_ids and successor_memory
  and redis.call('exists', successor_memory) == 1
return is_polled and {1 + receivers, 'polled'} or (held and 1 + receivers or lost)
