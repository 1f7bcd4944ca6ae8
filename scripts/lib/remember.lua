-- lib/remember: what a request did is kept, so that a copy of it does nothing and answers the same.
-- defines  remember(answer): returns the answer too. KEYS[3] is the memory, ARGV[2] its ttl, ms
local function remember(answer)
  redis.call('set', KEYS[3], answer, 'px', ARGV[2])
  return answer
end
