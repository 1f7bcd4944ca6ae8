-- lock/acquire: acquire the lock for an owner id that belongs to one acquisition alone.
-- uses     lib/acl
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: on which the release will be published
-- KEYS[3]  memory_key: of this acquisition's release; exists if a late copy must not acquire
-- KEYS[4]  line: of waiting clients
-- KEYS[5]  token_key (optional): fencing token, for a fenced lock only
-- KEYS[6]  mark (optional): of clients that poll, if this one does
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  tokens (number, optional): how many to reserve; 0 for a lock that is not fenced
-- ARGV[5]  place (text, optional): the client's, in line; "" if it does not stand in line
-- ARGV[6]  since (text, optional): when it took that place, as an earlier reply says; "0": not
--          known
-- ARGV[7]  is_last (flag, optional): the client has no other waiter
-- ARGV[8]  mark_ttl_ms (ms, optional)
-- returns  acquired {since number, must_listen flag}:
--          0 when acquired, for a fenced lock the last token that was reserved, as text;
--          {holder's pttl, holder} when somebody else holds the lock, '' for a read-write lock,
--            and for a client in line also when it took its place, and 1 if it must listen on the
--            common channel;
--          "over" when this acquisition was released already
local lock_hash, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local line, token_key, mark = KEYS[4], KEYS[5], KEYS[6]
local owner, ttl_ms, publish, tokens = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local place = ARGV[5] ~= '' and ARGV[5] or nil
local since, is_last, mark_ttl_ms = ARGV[6], ARGV[7] == '1', ARGV[8]
local is_fenced = tokens and tokens ~= '0'

local is_free = false
if redis.call('exists', lock_hash, memory_key) == 0 then
  local denied = publish_denied(publish, channel)
  if denied then
    return denied
  end
  is_free = true
  if not is_fenced and not place then -- each case comes before the libraries that it does not need
    redis.call('hset', lock_hash, owner, 1)
    redis.call('pexpire', lock_hash, ttl_ms)
    return 0
  end
end

-- uses     lib/line

-- leave_or_renew ends the place in line of a client without more waiters. Another client's turn
-- comes again after all others.
local function leave_or_renew()
  if place and is_last then
    give_up_place(line, place)
  elseif place then
    renew_place(line, place)
  end
end

if is_free and not is_fenced then
  redis.call('hset', lock_hash, owner, 1)
  redis.call('pexpire', lock_hash, ttl_ms)
  leave_or_renew()
  return 0
end
if not is_free and redis.call('exists', memory_key) == 1 then
  return 'over'
end
-- Is it a copy of this request, or was the lock handed off to this owner?
local is_ours = not is_free and redis.call('hexists', lock_hash, owner) == 1

-- uses     lib/holder, lib/polls, lib/primary

if not is_free then
  require_primary(memory_key)
end
if not is_free and not is_ours then
  local holder, foreign_data = holder_of(lock_hash)
  if foreign_data then
    return foreign_data
  end
  local refused = {redis.call('pttl', lock_hash), holder}
  if place then
    refused[3], refused[4] = take_place(line, place, since)
  elseif mark then
    mark_poll(mark, mark_ttl_ms)
  end
  return refused
end

-- uses     lib/extend, lib/token

if is_ours then
  local last, unusable = 0, nil
  if is_fenced then
    last, unusable = last_token(token_key, tokens)
  end
  extend(lock_hash, ttl_ms) -- it may have been extended since
  leave_or_renew()
  return unusable or last
end
local last, unusable = reserve_tokens(token_key, tokens)
if unusable then
  return unusable
end
redis.call('hset', lock_hash, owner, 1)
redis.call('pexpire', lock_hash, ttl_ms)
leave_or_renew()
return last
