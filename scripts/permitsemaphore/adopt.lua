-- permitsemaphore/adopt: replace the ids of acquired permits by new ones, all or none.
-- uses     lib/acl, lib/clock, lib/number, lib/primary, permitsemaphore/leases
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel: on which the release will be published
-- KEYS[3]  memory_key: of the new ids' release
-- KEYS[4]  leases
-- ARGV[1]  publish (command)
-- ARGV[2]  old_ids (text): of 16 bytes each
-- ARGV[3]  new_ids (text): as many
-- ARGV[4]  ttl_ms (ms)
-- returns  number: 1, or 0 when not all of the old ids are held
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, old_ids, new_ids, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

require_primary(channel)
local now, wanted = now_ms(), #old_ids / 16
local ends_at = now + 1 + ttl_ms -- now is rounded down; a lease must not be shorter than its ttl
local old_list, live = acquired_permits(leases, old_ids, now)
if redis.call('exists', memory_key) == 1 or not read_number(permits_key) then
  return 0
end
if #acquired_permits(leases, new_ids, now) == wanted then -- a copy of this request
  extend_leases(leases, new_ids, ends_at)
  return 1
end
if live < wanted then
  return 0
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
-- Add the new ids first: a set that loses its last member is deleted, with its TTL.
set_leases(leases, new_ids, ends_at)
remove_leases(leases, old_list)
return 1
